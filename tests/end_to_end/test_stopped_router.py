"""A router that is stopped for a while (SIGSTOP, a frozen virtual machine) and goes on."""

import signal
import threading
import time

import httpx

from tests.support.cluster import running_cluster, wait_until

KEYS = 20_000
STOPPED_S = 1.1
"""Longer than a connection may take to be opened, and than a poll may take."""


def test_lists_in_flight_keep_their_replica_and_bounds(tmp_path):
    """The worker is healthy all the time: no list lacks a replica, and none states more than its bound."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k%05d" % i: b'"%040d"' % i for i in range(KEYS)})
        worker = cluster.start_worker()
        cluster.wait_settled(worker, replicas=1)
        router = cluster.start_router()
        url = f"http://{router}/v1/stores/counts/entries?limit={KEYS}"
        outcomes: list[tuple[int, str]] = []
        over: list[int] = []
        stop = threading.Event()

        def read(bound_ms: int | None) -> None:
            with httpx.Client(timeout=30) as client:
                while not stop.is_set():
                    bound = "" if bound_ms is None else f"&max_time_lag_ms={bound_ms}"
                    answer = client.get(f"{url}&timeout_ms=20000{bound}")
                    outcomes.append((answer.status_code, answer.text[:300]))
                    if bound_ms is not None and answer.status_code == 200:
                        figure = answer.json()["lag"]["time_lag_ms"]
                        over.extend([figure] * (figure is None or figure > bound_ms))

        readers = [threading.Thread(target=read, args=(bound_ms,)) for bound_ms in (None, None, 200)]
        for reader in readers:
            reader.start()
        process = cluster.router_process(router)
        try:
            for _ in range(4):
                done = len(outcomes)
                wait_until(lambda done=done: len(outcomes) > done + 3, "lists")
                process.send_signal(signal.SIGSTOP)
                time.sleep(STOPPED_S)
                process.send_signal(signal.SIGCONT)
        finally:
            process.send_signal(signal.SIGCONT)
            stop.set()
            for reader in readers:
                reader.join()
        assert {status for status, _ in outcomes} <= {200, 412}, [
            text for status, text in outcomes if status >= 500
        ]
        assert over == []
