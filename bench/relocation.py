"""Relocation of store directories, against the bare renames that it consists of."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench.comparison import Effort
from bench.figures import Row, interleaved

from forebay.task_ids import TaskId
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.relocate import relocate

STORES = 10_000
_TOPOLOGY = """
application_id = "bench"

[[subtopology]]
name = "new"
partitions = 1

[[subtopology.store]]
name = "new"

[[subtopology]]
name = "moved"
partitions = {stores}

[[subtopology.store]]
name = "moved"
"""


def relocation(effort: Effort) -> list[Row]:
    path = effort.directory / "topology.toml"
    path.write_text(_TOPOLOGY.format(stores=STORES))
    topology = load_topology(path)
    ours, theirs = interleaved(
        effort.rounds,
        lambda: _relocate(effort.directory / "state", topology),
        lambda: _rename(effort.directory / "bare"),
    )
    what = f"relocation of {STORES:,} stores to another ordinal, synced to disk"
    return [Row(what, "renames/s", ours, "bare os.rename, not synced", theirs)]


def _relocate(state_dir: Path, topology: Topology) -> float:
    directory = StateDirectory(state_dir, topology.application_id)
    for partition in range(STORES):
        _make(directory.store_path(TaskId(0, partition), "moved"))
    begun = time.perf_counter()
    relocate(directory, topology)
    taken = time.perf_counter() - begun
    assert directory.store_path(TaskId(1, STORES - 1), "moved").exists()
    directory.close()
    shutil.rmtree(state_dir)
    return STORES / taken


def _rename(directory: Path) -> float:
    moves = [(directory / f"0_{i}" / "moved", directory / f"1_{i}" / "moved") for i in range(STORES)]
    for source, target in moves:
        _make(source)
        target.parent.mkdir()
    begun = time.perf_counter()
    for source, target in moves:
        os.rename(source, target)
    taken = time.perf_counter() - begun
    shutil.rmtree(directory)
    return STORES / taken


def _make(store: Path) -> None:
    store.mkdir(parents=True)
    (store / "CURRENT").touch()
