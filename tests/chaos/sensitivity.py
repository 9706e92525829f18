"""How much the judge would notice: each answer of a run is made wrong, or an event lost, and judged again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.chaos.built_state import built_states
from tests.chaos.checker import check_read
from tests.chaos.fold import Fold, PartitionFold
from tests.chaos.history import History, Read, value_of

OLDER, MISSING, LOST = "the value before", "no such key", "a lost event"
MAX_LOST = 300
"""Events of a run that are lost, one at a time."""


def sensitivity(history: History) -> Mapping[str, tuple[int, int]]:
    """By way of making an answer wrong, in how many it was noticed, and how many were made."""
    fold = Fold(history.records, history.cuts, history.faults)
    noticed, made = {OLDER: 0, MISSING: 0}, {OLDER: 0, MISSING: 0}
    for read in history.reads:
        for way, wrong in _made_wrong(fold, read):
            made[way] += 1
            noticed[way] += any(check_read(fold, wrong, {}))
    lost = [any(built_states(fold, rest)) for rest in _without_an_event(history)]
    return {way: (noticed[way], made[way]) for way in made} | {LOST: (sum(lost), len(lost))}


def _without_an_event(history: History) -> Iterator[list[Read]]:
    """Streams of stores, each without one of its events that have items and an id."""
    streams: dict[str, list[Read]] = {}
    for read in history.reads:
        if read.followed is not None:
            streams.setdefault(read.followed.stream, []).append(read)
    lost = [
        (reads, index)
        for reads in streams.values()
        for index, read in enumerate(reads)
        if read.items and read.followed is not None and read.followed.reached is not None
    ]
    for reads, index in lost[:: -(-len(lost) // MAX_LOST) or 1]:
        yield reads[:index] + reads[index + 1 :]


def _made_wrong(fold: Fold, read: Read) -> Iterator[tuple[str, Read]]:
    """A hit of a key with the value before, and as a miss."""
    if read.kind not in ("key", "batch") or read.as_of_ms is not None or read.status != 200 or not read.items:
        return
    (item, value), (partition,) = read.items[0], read.portions
    eras = fold.partition(read.store, partition)
    older = _value_before(eras.logs[eras.at(read.received_ms)], item, value)
    if older is not None:
        yield OLDER, replace(read, items=((item, older),))
    yield MISSING, replace(read, status=404, problem="unknown-key", items=((item, None),))


def _value_before(log: PartitionFold, item: tuple[str], value: dict[str, int]) -> dict[str, object] | None:
    history = log.items.get(item)
    if history is None or value.get("serial") not in history.index_of:
        return None
    before = history.index_of[value["serial"]] - 1
    serial = history.versions[before].serial if before >= 0 else None
    return None if serial is None else value_of(item, serial)
