"""A whole worker in this process: what it reports of itself, to load balancers and to its group."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.setting_sources import load_settings
from forebay.settings import WorkerSettings
from forebay.streams_metadata import HostInfo
from forebay_web.limits import Limits
from forebay_worker.state.offsets_file import CAUGHT_UP
from forebay_worker.worker import Worker
from tests.support.cluster import Cluster, wait_until


@pytest.fixture
def worker(cluster: Cluster, tmp_path: Path) -> Iterator[Worker]:
    """Not started yet."""
    flags = {
        "topology": str(cluster.topology_path),
        "changelog": cluster.changelog.url,
        "state_dir": str(tmp_path / "state"),
        "initial_rebalance_delay_ms": 0,
    }
    settings = WorkerSettings(**load_settings("worker", flags, environment={}))
    worker = Worker(settings, HostInfo("127.0.0.1", 8080), Limits(settings))
    yield worker
    worker.stop()


def test_worker_is_not_ready_before_it_adopts_its_tasks(worker):
    adopt, before = worker.tasks.hold, []

    def hold(active, standby):
        before.append(worker.readiness())
        adopt(active, standby)

    worker.tasks.hold = hold
    worker.start()
    wait_until(lambda: worker.readiness() is None, "readiness")
    assert before[0] is not None


def test_only_a_caught_up_active_reports_the_end(cluster, worker):
    """Other replicas report their offsets."""
    ends = cluster.put("counts", {b"k%d" % i: b"1" for i in range(100)})
    tasks = worker.topology.tasks
    stores = {task: len(worker.topology.stores_of(task)) for task in tasks}
    applied = {task: (ends[task.partition] if task.ordinal == 0 else 0,) * stores[task] for task in tasks}
    worker.start()
    wait_until(lambda: worker.readiness() is None, "readiness")
    assert worker._subscription().offsets == {task: (CAUGHT_UP,) * stores[task] for task in tasks}
    worker.tasks.hold((), tasks)
    wait_until(lambda: worker._subscription().offsets == applied, "its being a standby")


def test_an_active_whose_lag_is_not_proven_is_at_its_offset(cluster, worker, monkeypatch):
    ends = cluster.put("counts", {b"k%d" % i: b"1" for i in range(100)})
    task = next(task for task in worker.topology.tasks if task.ordinal == 0)
    worker.start()
    wait_until(lambda: worker._subscription().offsets.get(task) == (CAUGHT_UP,), "its being active and near")
    # As if the log's end had not been observed for a while.
    monkeypatch.setattr("forebay.lag.END_OFFSET_MAX_AGE_MS", -1)
    assert worker._subscription().offsets[task] == (ends[task.partition],)


def test_a_worker_that_drains_is_not_ready(worker):
    worker.start()
    wait_until(lambda: worker.readiness() is None, "readiness")
    worker.drain()
    problem = worker.readiness()
    assert problem is not None
    assert problem.status == 503


def test_caught_up_is_within_acceptable_recovery_lag(worker, monkeypatch):
    acceptable = worker.settings.acceptable_recovery_lag
    for behind, is_near in ((acceptable, True), (acceptable + 1, False), (None, False)):
        monkeypatch.setattr(worker.admission, "records_behind", lambda _, behind=behind: behind)
        assert worker._is_near(object()) == is_near


def test_a_worker_that_its_group_does_not_take_says_why(worker):
    worker.membership.refusal = "another consumer"
    problem = worker.readiness()
    assert problem is not None
    assert problem.detail == "The worker has not joined its group yet. another consumer"
    assert worker.status([]).storage_fault == "another consumer"
    worker.start()
    wait_until(lambda: worker.readiness() is None, "readiness")
    assert worker.status([]).storage_fault is None
