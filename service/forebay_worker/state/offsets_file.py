"""``.offsets.json``: the offsets that every store on disk has committed, so that a start need not open them all.

An entry is valid while the store's directory is the one recorded and nothing was created or removed in it since.
RocksDB starts a new log and a new manifest whenever it is opened for writing, so a store that was opened after the
record was written no longer matches it, and is read. KIP-1035 opens and closes every store instead.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from forebay.file_access import read_regular
from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.fsync import write_durably
from forebay_worker.state.inspection import read_content
from forebay_worker.state.layout import store_path
from forebay_worker.state.relocation_plan import usable_offset

log = logging.getLogger(__name__)

RECORD_NAME = ".offsets.json"

Positions = Mapping[TaskId, Mapping[str, int]]
"""Next offset to apply by task and store, for stores that have reached an end of their log."""

_Fingerprint = list[int]


def read_positions(directory: StateDirectory, topology: Topology) -> Positions:
    """The positions of the RocksDB stores on disk that the topology could use, assigned or not.

    Incomplete, unreadable and external ones are left out and count as absent. Stores of other suppliers report
    theirs when they are opened.
    """
    recorded = _read_record(directory.path / RECORD_NAME, topology.fingerprint)
    positions: dict[TaskId, dict[str, int]] = {}
    for task, store in directory.stores_on_disk():
        spec = topology.stores.get(store)
        if spec is None or spec.supplier != "rocksdb":
            continue
        fingerprint, position = recorded.get(str(store_path(task, store)), (None, None))
        path = directory.store_path(task, store)
        if fingerprint != _fingerprint(path):
            content = read_content(path)
            offset = usable_offset(content, spec, task.partition)
            position = offset if content.restored else None
        if position is not None:
            positions.setdefault(task, {})[store] = position
    return positions


def record_positions(directory: StateDirectory, topology: Topology, positions: Positions) -> None:
    """Write the record; every store must be closed. If the disk refuses, the next start takes longer."""
    entries = {
        str(store_path(task, store)): [_fingerprint(directory.store_path(task, store)), position]
        for task, stores in positions.items()
        for store, position in stores.items()
        if topology.stores[store].supplier == "rocksdb"
    }
    document = {"topology": topology.fingerprint, "stores": entries}
    try:
        write_durably(directory.path / RECORD_NAME, json.dumps(document) + "\n")
    except OSError as error:
        log.warning(
            "the offsets could not be recorded and will be read from the stores at the next start: %s", error
        )


def _read_record(path: Path, fingerprint: str) -> dict[str, tuple[_Fingerprint, int]]:
    """Fingerprint and position by relative path; nothing if another topology wrote it."""
    try:
        document = json.loads(read_regular(path))
        if document["topology"] != fingerprint:
            return {}
        return {store: (found, int(position)) for store, (found, position) in document["stores"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is not an offset record (%r); offsets are read from the stores", path, error)
        return {}


def _fingerprint(path: Path) -> _Fingerprint | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_ino, found.st_mtime_ns]


CAUGHT_UP = -2
"""Stands for "at the end" among a member's offsets, Kafka Streams' ``LATEST_OFFSET``.

Only while an active's lag is proven to be acceptable; at close the real offset takes its place.
"""
INCOMPLETE = -3
"""Stands for a store that never reached an end of its log: however short that is, another's copy takes over."""


class OffsetCache:
    """Positions of closed stores on disk. Any thread may use it; in-memory stores never enter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: dict[TaskId, dict[str, int]] = {}

    def load(self, positions: Positions) -> None:
        """Replace all entries by what was found on disk."""
        with self._lock:
            self._positions = {task: dict(stores) for task, stores in positions.items()}

    def put(self, task: TaskId, store: str, position: int) -> None:
        """Record a store's position when it was closed."""
        with self._lock:
            self._positions.setdefault(task, {})[store] = position

    def drop(self, task: TaskId) -> None:
        """Drop a task that is held, and reports for itself, or whose directory is gone."""
        with self._lock:
            self._positions.pop(task, None)

    def positions(self) -> Positions:
        """All known positions."""
        with self._lock:
            return {task: dict(stores) for task, stores in self._positions.items()}
