"""A router of several processes: one address, one answer about the whole, no process left over."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

PROCESSES = 2
TRIES = 60
"""So many that one of two processes chosen alike is left out once in 2**59 runs."""


ROUTERS = {
    "lasting": (),
    "drained": ("--drain-ms", "1000"),
    "interrupted": ("--drain-ms", "600000", "--shutdown-timeout-ms", "600000"),
    "twice": ("--drain-ms", "600000", "--shutdown-timeout-ms", "600000"),
}
"""By what becomes of them, the routers and their options."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("processes")) as cluster:
        cluster.put("counts", {b"k1": b"1"})
        cluster.start_worker()
        yield cluster


@pytest.fixture(scope="module")
def routers(served: Cluster) -> dict[str, str]:
    """Their addresses; they start together, which is quicker, each with a directory for temporary files."""
    launched = {}
    with pytest.MonkeyPatch.context() as patched:
        for name, options in ROUTERS.items():
            temporary = served.directory / name
            temporary.mkdir()
            patched.setenv("TMPDIR", str(temporary))
            launched[name] = served.launch_router("--processes", str(PROCESSES), *options)
    for router in launched.values():
        served.wait_ready(router)
    return launched


@pytest.fixture
def router(routers: dict[str, str]) -> str:
    return routers["lasting"]


def get(router: str, path: str = "/v1/stores/counts/keys/k1") -> httpx.Response:
    """Over a connection of its own."""
    return httpx.get(f"http://{router}{path}", timeout=10)


def children(router: str) -> set[int]:
    return {int(row["process_id"]) for row in get(router, "/v1/status").json()["processes"]}


def states(router: str) -> set[str]:
    return {row["state"] for row in get(router, "/v1/status").json()["processes"]}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def figure(metrics: str, name: str) -> float:
    return sum(float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", metrics, re.M))


def test_any_process_answers_for_all(served, router):
    answering = {int(get(router, "/v1/status").json()["process_id"]) for _ in range(TRIES)}
    assert answering == children(router)
    assert len(answering) == PROCESSES
    assert served.router_process(router).pid not in answering
    for row in get(router, "/v1/status").json()["processes"]:
        assert (row["state"], row["workers_live"]) == ("ready", 1)


def reads_counted(router: str) -> float:
    return figure(get(router, "/metrics").text, "forebay_router_reads_total")


def test_metrics_are_summed_over_all_processes(router):
    before = reads_counted(router)
    for reads in (TRIES, 2 * TRIES):
        for _ in range(TRIES):
            assert get(router).status_code == 200
        for _ in range(10):
            metrics = get(router, "/metrics").text
            assert figure(metrics, "forebay_router_reads_total") == before + reads
            assert figure(metrics, "forebay_router_served_record_lag_count") == before + reads
            assert figure(metrics, "forebay_router_answer_seconds_count") == before + reads
            assert figure(metrics, "forebay_router_worker_live") == 1
            assert figure(metrics, "forebay_router_processes") == PROCESSES
            assert figure(metrics, "forebay_router_processes_answering") == PROCESSES


@pytest.mark.chaos
def test_dead_process_is_replaced_and_its_counters_stay(router):
    for _ in range(TRIES):
        get(router)
    counted, before = reads_counted(router), children(router)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    # Until its last thread is gone it may take a connection along.
    wait_until(lambda: not Path(f"/proc/{victim}").exists(), "death")
    for done in range(TRIES):
        assert get(router).status_code == 200
        assert reads_counted(router) == counted + done + 1
    wait_until(lambda: get(router, "/readyz").status_code == 200, "readiness")
    after = children(router)
    assert len(after) == PROCESSES
    assert after & before == before - {victim}
    assert reads_counted(router) == counted + TRIES


@pytest.mark.chaos
def test_successor_process_gets_requests_once_ready(served, router):
    wait_until(lambda: get(router, "/readyz").status_code == 200, "readiness")
    victim, survivor = sorted(children(router))
    (worker,) = served.workers.values()
    worker.send_signal(signal.SIGSTOP)
    try:
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{victim}").exists(), "death")
        # It answers its siblings before it has heard of any worker.
        wait_until(lambda: states(router) == {"ready", "not-ready"}, "the successor")
        answering = [int(get(router, "/v1/status").json()["process_id"]) for _ in range(TRIES // 3)]
    finally:
        worker.send_signal(signal.SIGCONT)
    assert set(answering) == {survivor}
    wait_until(lambda: states(router) == {"ready"}, "the successor's readiness")
    assert get(router, "/readyz").status_code == 200


@pytest.mark.chaos
def test_a_process_that_hangs_is_reported_and_its_counters_stay(router):
    for _ in range(TRIES):
        get(router)
    counted = reads_counted(router)
    with httpx.Client(base_url=f"http://{router}", timeout=10) as client:
        answering = int(client.get("/v1/status").json()["process_id"])
        (other,) = children(router) - {answering}
        os.kill(other, signal.SIGSTOP)
        wait_until(lambda: client.get("/readyz").status_code == 503, "silence")
        assert client.get("/readyz").json()["detail"] == "Not ready: 1 of the router's 2 processes."
        metrics = client.get("/metrics").text
        assert figure(metrics, "forebay_router_reads_total") == counted
        assert figure(metrics, "forebay_router_processes_answering") == 1
        states = {row["process_id"]: row["state"] for row in client.get("/v1/status").json()["processes"]}
        assert states == {str(answering): "ready", None: "silent"}
        os.kill(other, signal.SIGCONT)
        wait_until(lambda: client.get("/readyz").status_code == 200, "readiness")


def test_terminated_router_drains_and_leaves_nothing(served, routers):
    router = routers["drained"]
    before = children(router)
    begun = time.monotonic()
    # systemd sends the signal to every process of a service. Of the parent any thread may get it; the last is a
    # library's.
    last = max(int(thread.name) for thread in Path(f"/proc/{served.router_process(router).pid}/task").iterdir())
    for pid in (last, *before):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: get(router, "/readyz").status_code == 503, "draining")
    reads = 0
    while time.monotonic() < begun + 0.6:
        assert get(router).status_code == 200
        reads += 1
    assert reads > PROCESSES
    assert served.router_process(router).wait(10) == 0
    assert not any(map(alive, before))
    assert list((served.directory / "drained").iterdir()) == []


def readiness(router: str) -> int | None:
    try:
        return get(router, "/readyz").status_code
    except httpx.TransportError:
        return None


@pytest.mark.parametrize(
    ("name", "signals"), [("interrupted", [signal.SIGINT]), ("twice", [signal.SIGTERM, signal.SIGTERM])]
)
def test_a_router_can_be_ended_at_once(served, routers, name, signals):
    router = routers[name]
    before = children(router)
    served.wait_ready(router)
    for number, sig in enumerate(signals):
        if number:
            # Two of a kind that wait together are one.
            wait_until(lambda: readiness(router) == 503, "the first signal's arrival")
        served.router_process(router).send_signal(sig)
    assert served.router_process(router).wait(10) == 0
    assert not any(map(alive, before))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_address_in_use_is_refused_to_a_second_router(router, processes):
    command = [sys.executable, "-m", "forebay", "router", "--seeds", "127.0.0.1:1", "--listen", router]
    refused = subprocess.run(
        [*command, "--processes", str(processes)], capture_output=True, text=True, timeout=20, check=False
    )
    assert refused.returncode == 1
    assert f"Cannot listen on {router}: Address already in use." in refused.stderr
    assert get(router).status_code == 200


def test_router_whose_processes_cannot_start_ends(tmp_path):
    """The error states why."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    # A user who starts it there does not mean its modules.
    (tmp_path / "pickle.py").write_text("raise RuntimeError('whose is this?')")
    command = [sys.executable, "-P", "-m", "forebay", "router", "--seeds", "127.0.0.1:1", "--processes", "2"]
    failed = subprocess.run(
        [*command, "--listen", f"127.0.0.1:{free_port()}", "--auth-tokens-file", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={**os.environ, "TMPDIR": str(directory)},
        cwd=tmp_path,
    )
    assert failed.returncode == 2
    assert f"{tmp_path}/none" in failed.stderr
    assert "A process of the router ended with status 2 before it was up" in failed.stderr
    assert list(directory.iterdir()) == []


@pytest.mark.chaos
def test_no_process_outlives_the_parent(served, router):
    # Last, since it ends what the others ask.
    before = children(router)
    served.router_process(router).kill()
    wait_until(lambda: not any(map(alive, before)), "the end of all")
