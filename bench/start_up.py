"""How long a worker takes to learn what it has on disk, compared with opening every store."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.comparison import Effort
from bench.figures import Row, Target, interleaved

from forebay.state_store import CommittedOffset
from forebay.stored_keys import USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.offsets_file import RECORD_NAME, read_positions, record_positions
from forebay_worker.state.reserved_records import StoreIdentity
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory

TASKS = 500
STORES_PER_TASK = 4
STORES = TASKS * STORES_PER_TASK
RECORDS = 20
_MEMORY = RocksDbMemory(64 << 20, 64 << 20)


def start_up(effort: Effort) -> list[Row]:
    path = effort.directory / "topology.toml"
    path.write_text(_topology())
    topology = load_topology(path)
    directory = StateDirectory(effort.directory / "state", topology.application_id)
    for task in topology.tasks:
        for store in topology.stores:
            _open(directory, topology, task, store).close()
    recorded, read, opened = interleaved(
        effort.rounds,
        lambda: _after_a_clean_stop(directory, topology),
        lambda: _after_a_kill(directory, topology),
        lambda: _timed(lambda: _open_all(directory, topology)),
    )
    directory.close()
    against = "opening and closing each, one by one"
    what = f"offsets of {STORES:,} store directories at start, after a"
    below = Target(0.5, at_least=False)
    return [
        Row(f"{what} clean stop", "s", recorded, against, opened, below),
        Row(f"{what} kill", "s", read, against, opened, below),
    ]


def _topology() -> str:
    stores = "".join(f'\n[[subtopology.store]]\nname = "s{n}"\n' for n in range(STORES_PER_TASK))
    return f'application_id = "bench"\n\n[[subtopology]]\nname = "s"\npartitions = {TASKS}\n{stores}'


def _after_a_clean_stop(directory: StateDirectory, topology: Topology) -> float:
    record_positions(directory, topology, read_positions(directory, topology))
    return _timed(lambda: _read(directory, topology))


def _after_a_kill(directory: StateDirectory, topology: Topology) -> float:
    (directory.path / RECORD_NAME).unlink()
    return _timed(lambda: _read(directory, topology))


def _read(directory: StateDirectory, topology: Topology) -> None:
    positions = read_positions(directory, topology)
    assert sum(len(stores) for stores in positions.values()) == STORES


def _open_all(directory: StateDirectory, topology: Topology) -> None:
    for task in topology.tasks:
        for store in topology.stores:
            opened = _open(directory, topology, task, store)
            assert opened.committed_offset(TopicPartition(topology.stores[store].topic, task.partition))
            opened.close()


def _open(directory: StateDirectory, topology: Topology, task: TaskId, store: str) -> RocksDbStore:
    """A store with a few records; existing content is left unchanged."""
    spec = topology.stores[store]
    line = TopicPartition(spec.topic, task.partition)
    opened = RocksDbStore(store, directory.store_path(task, store), _MEMORY.options())
    if opened.identity is None:
        opened.set_identity(StoreIdentity("log", *line, spec.kind, spec.key, spec.value))
        for key in range(RECORDS):
            opened.put(USER_TAG + b"%d" % key, b"1" * 100)
        opened.commit({line: CommittedOffset(RECORDS, RECORDS, restored=True)})
    return opened


def _timed(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
