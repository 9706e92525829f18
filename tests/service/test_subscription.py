"""What a worker reports to its group's leader of the tasks that it holds."""

from forebay.settings import WorkerSettings, load_settings
from forebay_worker.state.offsets import CAUGHT_UP
from forebay_worker.worker import Worker
from tests.cluster import wait_until


def test_only_an_active_that_has_caught_up_is_at_the_end_and_all_others_at_their_offsets(cluster, tmp_path):
    ends = cluster.put("counts", {b"k%d" % i: b"1" for i in range(100)})
    flags = {
        "topology": str(cluster.topology_path),
        "changelog": cluster.changelog.url,
        "state_dir": str(tmp_path / "state"),
        "initial_rebalance_delay_ms": 0,
    }
    settings = WorkerSettings(**load_settings("worker", flags, environment={}))
    worker = Worker(settings, settings.listen)
    tasks = worker.topology.tasks
    applied = {task: ends[task.partition] if task.ordinal == 0 else 0 for task in tasks}
    try:
        worker.start()
        wait_until(lambda: worker.readiness() is None, "readiness")
        assert worker._subscription().offsets == dict.fromkeys(tasks, CAUGHT_UP)
        worker.tasks.hold((), tasks)
        wait_until(lambda: worker._subscription().offsets == applied, "its being a standby")
    finally:
        worker.stop()
