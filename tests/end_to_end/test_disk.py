"""A disk that is full or read-only under a worker: what was applied is served, and the lag and its cause are
reported."""

import contextlib
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster, free_port, running_cluster, wait_until
from tests.support.disks import failing_disk, fill, small_disk

pytestmark = pytest.mark.chaos


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as path:
        yield path


@contextlib.contextmanager
def worker_on(disk: Path, directory: Path) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(directory) as cluster:
        address = f"127.0.0.1:{free_port()}"
        cluster._state_dirs[address] = disk / "state"
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        cluster.start_worker(address)
        cluster.wait_settled(address, replicas=1)
        yield cluster, address


def overwrite(cluster: Cluster) -> None:
    """More than what the pages in hand still take."""
    cluster.put("counts", {b"k%d" % i: b'"%s"' % (b"x" * 1024) for i in range(50)})


def get(address: str, path: str) -> httpx.Response:
    return httpx.get(f"http://{address}{path}")


def storage_fault(address: str) -> str:
    return get(address, "/v1/status").json()["storage_fault"] or ""


def assert_serves_what_it_has_and_says_why(address: str, disk: Path, why: str) -> None:
    wait_until(lambda: why in storage_fault(address), "the obstacle's report")
    answers = [get(address, f"/v1/stores/counts/keys/k{i}") for i in range(50)]
    assert {answer.status_code for answer in answers} == {200}
    behind = [answer for answer in answers if answer.json()["lag"]["record_lag"] > 0]
    assert behind
    url = f"/v1/stores/counts/keys/{behind[0].json()['key']}"
    assert get(address, f"{url}?max_record_lag=0").status_code == 412
    lag_ms = behind[0].json()["lag"]["time_lag_ms"]
    wait_until(lambda: get(address, url).json()["lag"]["time_lag_ms"] > lag_ms + 2500, "a lag that grows")
    ready = get(address, "/readyz")
    assert ready.status_code == 503
    for text in (ready.text, storage_fault(address)):
        assert f"{disk}/state/test" in text
        assert why in text


def test_a_full_disk_under_a_worker(disk, tmp_path):
    with worker_on(disk, tmp_path) as (cluster, address):
        filler = fill(disk)
        overwrite(cluster)
        assert_serves_what_it_has_and_says_why(address, disk, "No space left on device. Free some space")
        filler.unlink()
        cluster.wait_ready(address)
        cluster.wait_settled(address, replicas=1)
        assert get(address, "/v1/stores/counts/keys/k1").json()["value"] == "x" * 1024
        assert storage_fault(address) == ""
        cluster.put("counts", {b"k1": b"2"})
        key = "/v1/stores/counts/keys/k1?max_record_lag=0"
        wait_until(lambda: get(address, key).json().get("value") == 2, "what was written last")


def test_another_worker_is_active_while_the_disk_is_full(disk, tmp_path):
    with worker_on(disk, tmp_path) as (cluster, full):
        other = cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router)
        before = cluster.roles(router, "counts")
        assert full in [host for roles in before.values() for host, role in roles.items() if role == "active"]
        filler = fill(disk)
        overwrite(cluster)

        def served_by(key: str) -> str | None:
            answer = get(router, f"/v1/stores/counts/keys/{key}?require_active=true&max_record_lag=0")
            return answer.json()["host"] if answer.status_code == 200 else None

        wait_until(lambda: {served_by(f"k{i}") for i in range(50)} == {other}, "the other being active for all")
        filler.unlink()
        wait_until(lambda: cluster.roles(router, "counts") == before, "the roles from before", 30)


def test_worker_started_on_a_full_disk_waits_for_room(disk, tmp_path):
    """No store is rebuilt."""
    with worker_on(disk, tmp_path) as (cluster, address):
        cluster.kill(address)
        filler = fill(disk)
        cluster.start_worker(address, ready=False)
        wait_until(lambda: _alive(address) and "No space left" in storage_fault(address), "the obstacle's report")
        assert get(address, "/readyz").status_code == 503
        filler.unlink()
        cluster.wait_ready(address)
        assert get(address, "/v1/stores/counts/keys/k1").json()["value"] == 1
        assert not (disk / "state" / "test" / ".set-aside").exists()


def test_a_disk_that_turns_read_only_under_a_worker(tmp_path):
    with failing_disk(tmp_path / "disk") as disk, worker_on(disk.path, tmp_path) as (cluster, address):
        disk.turn_read_only()
        overwrite(cluster)
        assert_serves_what_it_has_and_says_why(address, disk.path, "Read-only file system")
        cluster.kill(address, signal.SIGTERM)
        assert cluster.workers[address].returncode == 0, cluster.logs()


def test_a_worker_does_not_start_on_a_read_only_disk(disk, tmp_path):
    with worker_on(disk, tmp_path) as (cluster, address):
        cluster.kill(address)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        cluster.start_worker(address, ready=False)
        assert cluster.workers[address].wait(20) != 0
        why = f"The state directory {disk}/state/test cannot be written: Read-only file system."
        assert why in cluster.logs()


def _alive(address: str) -> bool:
    try:
        return get(address, "/v1/status").status_code == 200
    except httpx.TransportError:
        return False


def test_a_worker_takes_all_the_open_files_it_may_have(tmp_path):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Processes started from here have this one's limits.
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most[1]))
    try:
        with running_cluster(tmp_path) as cluster:
            address = cluster.start_worker()
            assert resource.prlimit(cluster.workers[address].pid, resource.RLIMIT_NOFILE) == (most[1], most[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
