"""A time that cannot be: one record far in the future expires nothing else, on any replica and after any
replay."""

import pytest

from forebay.errors import TopologyError
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks import recovery
from forebay_worker.tasks.manager import TaskManager
from tests.support.cluster import wait_until
from tests.support.held_tasks import started

TASK = TaskId(0, 0)
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
KINDS = {
    "window": {"window_size_ms": HOUR_MS, "retention_ms": 24 * HOUR_MS},
    "session": {"gap_ms": 1_000, "retention_ms": 24 * HOUR_MS},
}


def topology_of(kind: str, **fields: object) -> Topology:
    store = {"name": "a", "kind": kind, **KINDS[kind], **fields}
    return parse_topology(
        {"application_id": "app", "subtopology": [{"name": "s", "partitions": 1, "store": [store]}]}
    )


def write(changelog: SqliteChangelog, topology: Topology, times_ms: list[int], batch: int = 1) -> None:
    """One record for each window or session with this start and end, written at its own time or now."""
    spec = topology.stores["a"]
    rows = []
    for time_ms in times_ms:
        key = b"k" + time_ms.to_bytes(8, "big") * spec.stored_keys.times
        rows.append((key, b"1", min(time_ms, NOW_MS)))
    path = changelog.path(TopicPartition(spec.topic, 0))
    sqlite_batches.append_batch(path, rows, writer="a", query_id="q", batch_id=batch, write_name="a")


def oldest_kept_ms(manager: TaskManager) -> int | None:
    replica = manager.replicas.get(("a", 0))
    return None if replica is None or not replica.view.restored else replica.view.oldest_kept_ms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bulk", [False, True], ids=["followed", "restored"])
def test_a_record_far_ahead_expires_nothing(tmp_path, kind, bulk, monkeypatch, caplog):
    """It is kept and counted; a later restart, and a rebuild after compaction, decide the same."""
    monkeypatch.setattr(recovery, "BULK_RESTORE_RECORDS", 0 if bulk else 1 << 30)
    topology = topology_of(kind)
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic(topology.stores["a"].topic, 1)
    write(changelog, topology, [NOW_MS - HOUR_MS, NOW_MS, 1_000 * NOW_MS, NOW_MS - 2 * HOUR_MS])
    kept: list[int | None] = []
    for restart in range(3):
        if restart == 2:
            changelog.compact(topology.stores["a"], CompactionLimits(0, 0))
        state = tmp_path / ("state" if restart < 2 else "rebuilt")
        state.mkdir(exist_ok=True)
        with started(state, changelog, StoreFactory, restore_processes=int(bulk), topology=topology) as manager:
            manager.hold([TASK], ())
            wait_until(lambda manager=manager: oldest_kept_ms(manager) is not None, "the replica")
            kept.append(oldest_kept_ms(manager))
            replica = manager.replicas["a", 0]
            # Counted once the records can be read.
            wait_until(lambda replica=replica, ahead=restart != 1: replica.records.ahead == ahead, "the count")
            assert sum(1 for _ in replica.view.store.scan(b"\x01", b"\xff")) >= 4
    assert len(set(kept)) == 1
    assert NOW_MS - 27 * HOUR_MS < kept[0] < NOW_MS - 22 * HOUR_MS
    assert "timestamp_after_max_ms" in caplog.text


def test_another_bound_rebuilds_the_store(tmp_path, caplog):
    changelog = SqliteChangelog(tmp_path / "log")
    narrow, wide = topology_of("window", timestamp_after_max_ms=1), topology_of("window")
    changelog.ensure_topic(wide.stores["a"].topic, 1)
    write(changelog, wide, [NOW_MS])
    for topology in (wide, narrow):
        with started(tmp_path, changelog, StoreFactory, topology=topology) as manager:
            manager.hold([TASK], ())
            wait_until(lambda manager=manager: manager.replicas and manager.checked, "the replica")
    assert "timestamp_after_max_ms 1" in caplog.text or "timestamp_after_max_ms None instead of 1" in caplog.text


def test_other_kinds_have_no_such_bound():
    with pytest.raises(TopologyError, match="timestamp_after_max_ms"):
        parse_topology(
            {
                "application_id": "app",
                "subtopology": [
                    {"name": "s", "partitions": 1, "store": [{"name": "a", "timestamp_after_max_ms": 5}]}
                ],
            }
        )
