"""A worker of several processes: members of the group on one machine, and one worker to supervisors."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from examples.ports import free_ports
from tests.support.cluster import Cluster, running_cluster, wait_until

KEYS = [f"k{i}" for i in range(40)]


@dataclass
class Served:
    cluster: Cluster
    worker: str
    """The address of its first process."""
    elsewhere: str
    """A worker of two processes on another machine."""
    router: str
    process_id: str
    """That of the worker when it had one process."""

    @property
    def second(self) -> str:
        return next_to(self.worker)

    @property
    def processes(self) -> list[str]:
        return [self.worker, self.second, self.elsewhere, next_to(self.elsewhere)]

    def actives(self) -> set[str]:
        """The processes with an active of the first store."""
        found = self.cluster.roles(self.router, "counts")
        return {host for roles in found.values() for host, role in roles.items() if role == "active"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running_cluster(tmp_path_factory.mktemp("worker-processes")) as cluster:
        cluster.put("counts", {key.encode(): b"1" for key in KEYS})
        worker = f"127.0.0.1:{successive_ports()}"
        cluster.start_worker(worker)
        process_id = cluster.get(worker, "/v1/identity")["process_id"]
        cluster.kill(worker, signal.SIGTERM)
        cluster.start_worker(worker, "--processes", "2", ready=False)
        # Another machine, as far as the group knows.
        elsewhere = f"127.0.0.2:{successive_ports()}"
        cluster.start_worker(elsewhere, "--processes", "2")
        cluster.wait_ready(worker)
        router = cluster.start_router()
        served = Served(cluster, worker, elsewhere, router, process_id)
        # The copies that a newcomer catches up on count as replicas before it has an active.
        wait_until(lambda: set(served.processes) <= served.actives(), "an active on each process")
        cluster.wait_settled(router)
        yield served


def successive_ports() -> int:
    """The first of two free ports."""
    first, second = free_ports(2)
    while second != first + 1:
        first, second = second, *free_ports(1)
    return first


def next_to(address: str) -> str:
    """The address of the second process."""
    host, port = address.split(":")
    return f"{host}:{int(port) + 1}"


def get(address: str, path: str) -> httpx.Response:
    return httpx.get(f"http://{address}{path}", timeout=10)


def children(parent: int) -> list[int]:
    texts = [path.read_text() for path in Path(f"/proc/{parent}/task").glob("*/children")]
    return sorted((int(child) for text in texts for child in text.split()), key=started_at)


def started_at(pid: int) -> int:
    """When a process was started, in the kernel's ticks. Why: process ids begin anew at some thousands."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def figure(metrics: str, name: str) -> float:
    return sum(float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", metrics, re.M))


def test_first_process_keeps_the_single_process_state(served):
    """State from a worker of one process is not moved."""
    assert served.cluster.get(served.worker, "/v1/identity")["process_id"] == served.process_id
    assert served.cluster.get(served.second, "/v1/identity")["process_id"] != served.process_id
    state = served.cluster.directory / "state-0"
    assert sorted(path.name for path in state.iterdir()) == ["process-1", "test"]
    assert (state / "process-1" / "test" / "process.json").exists()


def test_standbys_are_on_other_machines_than_their_actives(served):
    """Tasks are divided among all processes."""
    assert served.actives() == set(served.processes)

    def apart() -> bool:
        held = served.cluster.roles(served.router, "counts").values()
        return all(len({host.split(":")[0] for host in roles}) == 2 for roles in held)

    wait_until(apart, "replicas on both machines", 60)


def test_each_process_answers_for_its_tasks(served):
    for process in (served.worker, served.second):
        statuses = {get(process, f"/v1/stores/counts/keys/{key}").status_code for key in KEYS}
        assert statuses == {200, 421}
    for key in KEYS:
        assert get(served.router, f"/v1/stores/counts/keys/{key}").status_code == 200


def test_any_process_reports_on_the_worker_as_a_whole(served):
    for process in (served.worker, served.second):
        assert get(process, "/readyz").status_code == 200
        metrics = get(process, "/metrics").text
        assert figure(metrics, "forebay_processes") == figure(metrics, "forebay_processes_answering") == 2
        held = [served.cluster.get(host, "/v1/lags")["lags"] for host in (served.worker, served.second)]
        labels = r'partition="\d+",process="[01]",role="\w+",store="\w+"'
        roles = re.findall(rf"^forebay_replica_role{{{labels}}} 1\.0$", metrics, re.M)
        assert len(roles) == sum(map(len, held)) > len(held[0])


def test_any_process_says_how_far_behind_the_answers_of_all_were(served):
    names = [f"forebay_served_{name}_count" for name in ("record_lag", "time_lag_seconds", "age_seconds")]
    before = get(served.worker, "/metrics").text
    answered = {
        process: [get(process, f"/v1/stores/counts/keys/{key}").status_code for key in KEYS].count(200)
        for process in (served.worker, served.second)
    }
    assert all(answered.values())
    for process in answered:
        metrics = get(process, "/metrics").text
        for name in names:
            # Those that another process has are refused.
            assert figure(metrics, name) - figure(before, name) == sum(answered.values())
        took = figure(metrics, "forebay_answer_seconds_count") - figure(before, "forebay_answer_seconds_count")
        assert took == 2 * len(KEYS)


@pytest.mark.chaos
def test_killed_process_is_replaced_without_failed_reads(served):
    """What it counted stays in the worker's metrics."""
    parent = served.cluster.workers[served.worker].pid
    before = children(parent)
    counted = figure(get(served.worker, "/metrics").text, "forebay_reads_total")
    victim = before[1]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{victim}").exists(), "death")
    for key in KEYS:
        assert get(served.router, f"/v1/stores/counts/keys/{key}").status_code == 200
    refusal = get(served.worker, "/readyz")
    assert (refusal.status_code, refusal.json()["detail"]) == (503, "Not ready: 1 of the worker's 2 processes.")
    wait_until(lambda: get(served.worker, "/readyz").status_code == 200, "readiness")
    assert len(after := children(parent)) == 2
    assert set(after) & set(before) == {before[0]}
    # To Prometheus, a sum that went down would be a restart of all.
    assert figure(get(served.second, "/metrics").text, "forebay_reads_total") >= counted


@pytest.mark.chaos
def test_the_first_process_is_replaced_and_the_others_stay(served):
    parent = served.cluster.workers[served.worker].pid
    first, second = children(parent)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{first}").exists(), "death")
    assert get(served.second, "/readyz").status_code == 503
    for key in KEYS:
        assert get(served.router, f"/v1/stores/counts/keys/{key}").status_code == 200
    wait_until(lambda: get(served.second, "/readyz").status_code == 200, "readiness")
    assert second in children(parent)


def ended(worker: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        get(worker, "/livez")
        return False
    return True


def test_restart_with_fewer_processes_names_leftover_state(served):
    cluster, worker = served.cluster, served.worker
    process = cluster.workers[worker]
    before = children(process.pid)
    # systemd and terminals signal all processes.
    for pid in (process.pid, *before):
        os.kill(pid, signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        reads = pool.map(lambda key: get(served.router, f"/v1/stores/counts/keys/{key}").status_code, KEYS)
        assert set(reads) == {200}
    assert process.wait(15) == 0
    assert not any(map(alive, before))
    cluster.start_worker(worker)
    assert f"{cluster.directory}/state-0/process-1/test is the state of one process more" in cluster.logs()


@pytest.mark.chaos
def test_hanging_process_is_killed_and_the_status_shows_it(served):
    cluster, worker = served.cluster, served.worker
    cluster.kill(worker, signal.SIGTERM)
    cluster.start_worker(worker, "--processes", "2", "--shutdown-timeout-ms", "1500")
    process = cluster.workers[worker]
    hanging = children(process.pid)[1]
    os.kill(hanging, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 1
    assert not alive(hanging)
    assert f"process {hanging} of the worker did not end within shutdown_timeout_ms" in cluster.logs()
    cluster.start_worker(worker, ready=False)


@pytest.mark.chaos
def test_no_process_outlives_the_parent(served):
    cluster, worker = served.cluster, served.worker
    cluster.kill(worker, signal.SIGTERM)
    cluster.start_worker(worker, "--processes", "2", ready=False)
    process = cluster.workers[worker]
    wait_until(lambda: not ended(worker), "a first answer")
    before = children(process.pid)
    assert len(before) == 2
    process.kill()
    wait_until(lambda: not any(map(alive, before)), "the end of all")
