"""The offsets of what is on disk are known at start, whatever happened to the stores since they were recorded."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.state_store import CommittedOffset
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_worker.state import offsets_file
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import RECORD_NAME, read_positions, record_positions
from forebay_worker.state.reserved_records import StoreIdentity
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory

MEMORY = RocksDbMemory(8 << 20, 8 << 20)
TASK = TaskId(0, 1)


def topology(key: str = "string") -> Topology:
    return parse_topology(
        {
            "application_id": "app",
            "subtopology": [
                {"name": "s", "partitions": 2, "store": [{"name": "a", "key": key}, {"name": "b"}, {"name": "c"}]}
            ],
        }
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    opened = StateDirectory(tmp_path, "app")
    yield opened
    opened.close()


@pytest.fixture
def read_stores(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the stores that had to be read."""
    read: list[str] = []
    real = offsets_file.read_content
    monkeypatch.setattr(offsets_file, "read_content", lambda path: read.append(path.name) or real(path))
    return read


def put(directory: StateDirectory, store: str, position: int, *, restored: bool = True) -> None:
    line = TopicPartition(f"app-{store}-changelog", TASK.partition)
    opened = RocksDbStore(store, directory.store_path(TASK, store), MEMORY.options())
    opened.set_identity(StoreIdentity("log", *line, "key-value", "string", "json"))
    opened.commit({line: CommittedOffset(position, position, restored=restored)})
    opened.close()


def put_three(directory: StateDirectory) -> None:
    for position, store in enumerate("abc", start=10):
        put(directory, store, position)


def test_without_a_record_every_store_is_read(directory, read_stores):
    put_three(directory)

    assert read_positions(directory, topology()) == {TASK: {"a": 10, "b": 11, "c": 12}}
    assert read_stores == ["a", "b", "c"]


def test_after_a_clean_stop_no_store_is_read(directory, read_stores):
    put_three(directory)
    found = read_positions(directory, topology())
    record_positions(directory, topology(), found)
    read_stores.clear()

    assert read_positions(directory, topology()) == found
    assert read_stores == []


def test_store_opened_since_is_read_again(directory, read_stores):
    """The store's entry in the record is stale."""
    put_three(directory)
    record_positions(directory, topology(), read_positions(directory, topology()))
    put(directory, "b", 99)
    read_stores.clear()

    assert read_positions(directory, topology()) == {TASK: {"a": 10, "b": 99, "c": 12}}
    assert read_stores == ["b"]


def test_a_store_put_in_the_place_of_the_one_recorded_is_read(directory, read_stores):
    put_three(directory)
    record_positions(directory, topology(), read_positions(directory, topology()))
    directory.set_aside(TASK, "a")
    put(directory, "a", 3)
    read_stores.clear()

    assert read_positions(directory, topology())[TASK]["a"] == 3
    assert read_stores == ["a"]


def test_a_store_that_is_gone_counts_as_none(directory):
    put_three(directory)
    record_positions(directory, topology(), read_positions(directory, topology()))
    directory.delete_store(TASK, "c")

    assert read_positions(directory, topology()) == {TASK: {"a": 10, "b": 11}}


def test_unrestored_unreadable_or_other_store_counts_as_none(directory, caplog):
    put(directory, "a", 10, restored=False)
    put(directory, "b", 11)
    (directory.store_path(TASK, "b") / "CURRENT").write_text("nonsense\n")
    put(directory, "c", 12)

    assert read_positions(directory, topology()) == {TASK: {"c": 12}}
    assert f"the store {directory.store_path(TASK, 'b')} cannot be read" in caplog.text


def test_a_record_of_another_topology_is_not_believed(directory):
    put_three(directory)
    record_positions(directory, topology(), read_positions(directory, topology()))

    assert read_positions(directory, topology(key="int64")) == {TASK: {"b": 11, "c": 12}}


@pytest.mark.parametrize("nonsense", ["", "[]", "{}", '{"topology": 1, "stores": {"x": 1}}', "\x00"])
def test_a_record_that_is_none_costs_a_reading(directory, nonsense, caplog):
    put_three(directory)
    (directory.path / RECORD_NAME).write_text(nonsense)

    assert read_positions(directory, topology()) == {TASK: {"a": 10, "b": 11, "c": 12}}


def test_stores_of_other_suppliers_are_not_recorded(directory):
    put_three(directory)
    supplied = topology()
    [subtopology] = supplied.subtopologies
    stores = (replace(subtopology.stores[0], supplier="memory"), *subtopology.stores[1:])
    supplied = replace(supplied, subtopologies=(replace(subtopology, stores=stores),))

    record_positions(directory, supplied, {TASK: {"a": 10, "b": 11}})

    assert "/a" not in (directory.path / RECORD_NAME).read_text()
    assert read_positions(directory, supplied) == {TASK: {"b": 11, "c": 12}}
