"""Routers behind a real nginx, by the configuration that is there."""

import contextlib
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, free_port, running_cluster, wait_until

CONFIGURATION = (Path(__file__).parents[2] / "deploy" / "nginx.conf").read_text()
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
KEY = "/v1/stores/counts/keys/a%2Fb"
MOST_STREAMS = 8
CLIENTS = ("127.0.0.2", "127.0.0.3")


class Balanced:
    """A worker, two routers and nginx in front of them."""

    def __init__(self, cluster: Cluster, front: str) -> None:
        self.cluster = cluster
        self.front = f"http://{front}"
        self.worker = f"127.0.0.1:{free_port()}"
        self.routers = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.processes = [self.launch(router) for router in self.routers]

    def launch(self, router: str) -> subprocess.Popen[bytes]:
        options = ("--max-event-streams", str(MOST_STREAMS), "--trusted-proxies", "127.0.0.1/32")
        started = self.cluster.launch_router("--seeds", self.worker, "--listen", router, *options)
        return self.cluster.router_process(started)


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    if not Path(NGINX).exists():
        pytest.skip("nginx is not installed")
    directory = tmp_path_factory.mktemp("nginx")
    with running_cluster(directory) as cluster:
        cluster.put("counts", {b"a/b": b"1"})
        balanced = Balanced(cluster, f"127.0.0.1:{free_port()}")
        addresses = dict(zip(("router-1:8080", "router-2:8080"), balanced.routers, strict=True))
        text = re.sub(r"router-\d:8080", lambda found: addresses[found[0]], CONFIGURATION)
        configuration = directory / "nginx.conf"
        text = text.replace("/var/log/nginx", str(directory))
        configuration.write_text(text.replace("listen 8080", f"listen {balanced.front.removeprefix('http://')}"))
        files = f"daemon off; pid {directory}/nginx.pid; error_log {directory}/nginx.log;"
        process = subprocess.Popen([NGINX, "-c", configuration, "-e", directory / "nginx.log", "-g", files])
        try:
            for router in balanced.routers:
                cluster.wait_alive(router)
            wait_until(lambda: status(balanced) is not None, "nginx")
            yield balanced
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(15)


def status(balanced: Balanced) -> int | None:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(balanced.front + KEY).status_code
    return None


def test_where_no_router_is_ready_they_answer_all_the_same(balanced):
    for _ in range(6):
        # More than it takes for nginx to take both for down.
        answer = httpx.get(balanced.front + KEY)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:forebay:problem:not-ready")
        assert "retry-after" in answer.headers
    with httpx.stream("GET", f"{balanced.front}{KEY}/changes") as changes:
        # An EventSource is closed for good by any other status.
        assert changes.status_code == 200
        assert "event: problem" in changes.iter_lines()
    balanced.cluster.start_worker(balanced.worker)
    before = [reads(router) for router in balanced.routers]
    wait_until(
        lambda: (
            status(balanced) == 200
            and all(reads(router) > count + 1 for router, count in zip(balanced.routers, before, strict=True))
        ),
        "reads by both routers",
    )


def test_a_key_with_a_slash_a_batch_and_a_stream_pass(balanced):
    assert httpx.get(balanced.front + KEY).json()["value"] == 1
    batch = httpx.post(f"{balanced.front}/v1/stores/counts/batch-get", json={"keys": ["a/b"]})
    assert batch.json()["results"][0]["value"] == 1
    with httpx.stream("GET", f"{balanced.front}{KEY}/changes") as changes:
        lines = changes.iter_lines()
        assert "event: value" in lines
        balanced.cluster.put("counts", {b"a/b": b"2"})
        assert "event: value" in lines


def test_what_a_query_holds_is_not_logged(balanced):
    log = balanced.cluster.directory / "access.log"
    with httpx.stream("GET", f"{balanced.front}{KEY}/changes?lag_interval_ms=100&ticket=secret") as changes:
        assert changes.status_code == 200
    wait_until(lambda: f'"GET {KEY}/changes" 200' in log.read_text(), "the request in the log")
    assert "secret" not in log.read_text()


def test_limits_count_the_client_and_not_nginx_nor_what_the_client_writes(balanced):
    with contextlib.ExitStack() as stack:
        greedy, modest = (
            stack.enter_context(httpx.Client(transport=httpx.HTTPTransport(local_address=client)))
            for client in CLIENTS
        )

        def follow(client: httpx.Client, **headers: str) -> int:
            stream = client.stream("GET", f"{balanced.front}{KEY}/changes", headers=headers)
            return stack.enter_context(stream).status_code

        # nginx spreads them over both routers.
        taken = [follow(greedy) for _ in range(4 * MOST_STREAMS)]
        assert taken.count(200) == 2 * (MOST_STREAMS - 1)
        assert follow(greedy, **{"X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}) == 429
        assert follow(modest) == 200


@pytest.mark.chaos
def test_no_read_fails_while_routers_are_restarted_in_turn(balanced):
    stopped = threading.Event()

    def read() -> list[int | None]:
        statuses = []
        with httpx.Client() as client:
            while not stopped.is_set():
                statuses.append(client.get(balanced.front + KEY).status_code)
        return statuses

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for number, router in enumerate(balanced.routers):
                balanced.processes[number].send_signal(signal.SIGTERM)
                assert balanced.processes[number].wait(15) == 0
                balanced.processes[number] = balanced.launch(router)
                wait_until(lambda router=router: ready(router), "readiness")
        finally:
            stopped.set()
        statuses = [status for reader in readers for status in reader.result()]
    assert set(statuses) == {200}
    assert len(statuses) > 100


def reads(router: str) -> float:
    """Those that it has answered."""
    metrics = httpx.get(f"http://{router}/metrics").text
    return sum(map(float, re.findall(r'^forebay_router_reads_total{.*status="200".* (\S+)$', metrics, re.M)))


def ready(router: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://{router}/readyz").status_code == 200
    return False
