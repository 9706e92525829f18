from forebay.settings import WorkerSettings, load_settings
from forebay_worker.worker import Worker
from tests.cluster import wait_until


def test_a_worker_that_was_assigned_tasks_is_not_ready_before_it_adopts_them(cluster, tmp_path):
    flags = {
        "topology": str(cluster.topology_path),
        "changelog": cluster.changelog.url,
        "state_dir": str(tmp_path / "state"),
        "initial_rebalance_delay_ms": 0,
    }
    settings = WorkerSettings(**load_settings("worker", flags, environment={}))
    worker = Worker(settings, settings.listen)
    adopt, before = worker.tasks.hold, []

    def hold(active, standby):
        before.append(worker.readiness())
        adopt(active, standby)

    worker.tasks.hold = hold
    try:
        worker.start()
        wait_until(lambda: worker.readiness() is None, "readiness")
    finally:
        worker.stop()
    assert before[0] is not None
