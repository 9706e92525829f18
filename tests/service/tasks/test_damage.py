"""A store whose files are damaged: served right, refused or rebuilt, and never stuck."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.errors import NotReady
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.stored_values import encode_version, stamp
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.reads.values import scanned
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks import recovery
from forebay_worker.tasks.manager import TaskManager
from tests.support.cluster import wait_until
from tests.support.held_tasks import started

TASK = TaskId(0, 0)
BLOCK_BYTES = 4096
TAIL_BYTES = 1024
"""At the end of a file lie its index, filter, properties and footer."""
KINDS = {
    "key-value": {},
    "window": {"window_size_ms": 1_000, "retention_ms": 1_000_000},
    "versioned": {"history_retention_ms": 1_000_000},
}
OPENED_BY = ("*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*", "IDENTITY", "rocksdict-config.json")


@pytest.fixture(params=KINDS)
def topology(request: pytest.FixtureRequest) -> Topology:
    store = {"name": "a", "kind": request.param, **KINDS[request.param]}
    return parse_topology(
        {"application_id": "app", "subtopology": [{"name": "s", "partitions": 1, "store": [store]}]}
    )


def test_a_flipped_bit_is_served_right_or_rebuilt(tmp_path, topology, monkeypatch):
    """Each block of each file of a store, one at a time, in the image of a worker that was killed."""
    spec = topology.stores["a"]
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic(spec.topic, 1)
    expected = write(changelog, topology, batch=1)
    with monkeypatch.context() as patched:
        patched.setattr(recovery, "BULK_RESTORE_RECORDS", 10)
        with started(tmp_path, changelog, StoreFactory, restore_processes=1, topology=topology) as manager:
            manager.hold([TASK], ())
            wait_until(lambda: entries(manager) == expected, "the first batch")
    with started(tmp_path, changelog, StoreFactory, topology=topology) as manager:
        manager.hold([TASK], ())
        expected |= write(changelog, topology, batch=2)
        wait_until(lambda: entries(manager) == expected, "the second batch")
        # One batch in an ingested file, one in RocksDB's log.
        shutil.copytree(tmp_path / "state", tmp_path / "image")
    flipped = 0
    for file, at in list(places(tmp_path / "image")):
        shutil.rmtree(tmp_path / "state")
        shutil.copytree(tmp_path / "image", tmp_path / "state")
        flip(tmp_path / "state" / file, at)
        with started(tmp_path, changelog, StoreFactory, topology=topology) as manager:
            manager.hold([TASK], ())

            def served(file: Path = file, at: int = at) -> bool:
                found = entries(manager)
                # An answer may be old, never wrong.
                assert found is None or all(found[key] == expected[key] for key in found), (file, at)
                return found == expected

            wait_until(served, f"{file} with a bit flipped at {at}")
        flipped += 1
    assert flipped > 30


@pytest.mark.parametrize("topology", ["window", "versioned"], indirect=True)
def test_damage_met_by_a_sweep_is_rebuilt_at_once(tmp_path, topology, caplog):
    """Nothing holds the damaged store open, and nobody reads it."""
    spec = topology.stores["a"]
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic(spec.topic, 1)
    expected = write(changelog, topology, batch=1)
    with started(tmp_path, changelog, StoreFactory, topology=topology) as manager:
        manager.hold([TASK], ())
        wait_until(lambda: entries(manager) == expected, "the records")
        manager.replicas["a", 0].view.store.flush()
    largest = max(tmp_path.rglob("*.sst"), key=lambda file: file.stat().st_size)
    flip(largest, largest.stat().st_size // 2)
    with started(tmp_path, changelog, StoreFactory, topology=topology) as manager:
        manager.hold([TASK], ())
        wait_until(lambda: "it is rebuilt" in caplog.text, "the damage")
        replica = manager.replicas["a", 0]
        wait_until(lambda: replica.view.restored and replica.records.applied == len(expected), "the rebuild")
        assert entries(manager) == expected
    assert "could not be started" not in caplog.text


def write(changelog: SqliteChangelog, topology: Topology, batch: int) -> dict[bytes, bytes]:
    """Append rows; returns what a store then has of them, by stored key."""
    spec = topology.stores["a"]
    keys = spec.stored_keys
    rows, stored = [], {}
    for number in range(300 * (batch - 1), 300 * batch):
        plain, value = b"k%05d" % number, b'"%064d"' % number
        time_ms = 5_000 + number
        windowed = spec.kind == "window"
        rows.append((plain + time_ms.to_bytes(8, "big") if windowed else plain, value, time_ms))
        stored[keys.stored(plain, *[time_ms] * keys.times)] = (
            encode_version(stamp(time_ms) + value) if spec.kind == "versioned" else stamp(time_ms) + value
        )
    path = changelog.path(TopicPartition(spec.topic, 0))
    sqlite_batches.append_batch(path, rows, writer="a", query_id="q", batch_id=batch, write_name="a")
    return stored


def entries(manager: TaskManager) -> dict[bytes, bytes] | None:
    """What a list of the whole store would read, None if it is refused."""
    replica = manager.replicas.get(("a", 0))
    if replica is None:
        return None
    try:
        found = dict(scanned(replica, USER_TAG, END_OF_USER_KEYS))
    except NotReady:
        return None
    return found if replica.view.restored else None


def places(image: Path) -> Iterator[tuple[Path, int]]:
    """A byte of each block of each file that an opening reads."""
    for pattern in OPENED_BY:
        for file in sorted(image.rglob(pattern)):
            size = file.stat().st_size
            tail = range(max(0, size - TAIL_BYTES), size, TAIL_BYTES // 8)
            for at in sorted({*range(20, size, BLOCK_BYTES), *tail}):
                yield file.relative_to(image), at


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
