"""Tasks held on a real disk from a real log, for tests of what holds them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from forebay.state_store import StateStore
from forebay.stored_keys import USER_TAG
from forebay.stored_values import STAMP_SIZE
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.state.store_factory import OpenedStore, StoreFactory
from forebay_worker.tasks.manager import TaskManager
from forebay_worker.tasks.recovery import RecoveryPolicy
from tests.support.cluster import wait_until

MEMORY = RocksDbMemory(8 << 20, 8 << 20)
PARTITIONS = 6
TASKS = [TaskId(0, partition) for partition in range(PARTITIONS)]
TOPOLOGY = parse_topology(
    {
        "application_id": "app",
        "subtopology": [
            {"name": "s", "partitions": PARTITIONS, "store": [{"name": "a", "partitioner": "unknown"}]}
        ],
    }
)
TOPIC = TOPOLOGY.stores["a"].topic
TWO_STORES = parse_topology(
    {
        "application_id": "app",
        "subtopology": [
            {
                "name": "s",
                "partitions": PARTITIONS,
                "store": [{"name": "a", "partitioner": "unknown"}, {"name": "b", "partitioner": "unknown"}],
            }
        ],
    }
)


def value_in(store: StateStore, key: bytes) -> bytes | None:
    """The value of a key of a plain key-value store."""
    stamped = store.get(USER_TAG + key)
    return None if stamped is None else stamped[STAMP_SIZE:]


class SlowOpener(StoreFactory):
    """Opens a store only when it is let."""

    let = threading.Semaphore(0)

    @classmethod
    def let_all(cls) -> None:
        """Open whatever is asked for, now and later."""
        cls.let.release(1_000)

    def open(self, task, spec) -> OpenedStore:
        self.let.acquire()
        return super().open(task, spec)


def make_changelog(tmp_path: Path) -> SqliteChangelog:
    """A log with one record more in each partition than in the one before."""
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        rows = [(b"k", b"1", 0)] * (partition + 1)
        path = changelog.path(TopicPartition(TOPIC, partition))
        sqlite_batches.append_batch(path, list(rows), writer="a", query_id="q", batch_id=1, write_name="a")
    return changelog


@contextmanager
def started(
    tmp_path: Path,
    changelog: SqliteChangelog,
    opener: type[StoreFactory],
    restore_processes: int = 0,
    cleanup_ms: int = 600_000,
    topology: Topology = TOPOLOGY,
) -> Iterator[TaskManager]:
    """Tasks kept on a directory and a log, until the end of the block."""
    directory = StateDirectory(tmp_path / "state", "app")
    manager = TaskManager(
        topology,
        changelog,
        directory,
        opener(directory, changelog, MEMORY, 300_000),
        RecoveryPolicy(0, restore_processes),
        cleanup_ms,
    )
    manager.start()
    try:
        yield manager
    finally:
        if opener is SlowOpener:
            # Where a test failed, a store may still be waiting.
            SlowOpener.let_all()
        manager.stop()
        directory.close()


def unexpected(*arguments: object) -> None:
    raise AssertionError(f"called with {arguments}")


def fill(tmp_path: Path, changelog: SqliteChangelog) -> None:
    with started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: applied(manager) == offsets(), "all is applied")


def applied(manager: TaskManager) -> dict[TaskId, int]:
    """By task on disk, the records applied to its complete stores."""
    copies = manager.copies(lambda replica: replica.view.progress.position if replica.view.restored else 0)
    return {task: sum(copy.positions) for task, copy in copies.items()}


def offsets() -> dict[TaskId, int]:
    return {task: task.partition + 1 for task in TASKS}


def held(manager: TaskManager) -> set[TaskId]:
    return {replica.task for replica in manager.replicas.values()}


def append(
    changelog: SqliteChangelog, partition: int, batch: int, rows: Sequence[tuple[bytes, bytes | None, int]]
) -> None:
    path = changelog.path(TopicPartition(TOPIC, partition))
    sqlite_batches.append_batch(path, list(rows), writer="a", query_id="q", batch_id=batch, write_name="a")
