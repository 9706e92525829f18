"""How much the judge would notice: each answer of a run is made wrong, and judged again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.chaos.checker import check_read
from tests.chaos.fold import Fold, PartitionFold
from tests.chaos.history import History, Read, value_of

OLDER, MISSING = "the value before", "no such key"


def sensitivity(history: History) -> Mapping[str, tuple[int, int]]:
    """By way of making an answer wrong, in how many it was noticed, and how many were made."""
    fold = Fold(history.records)
    noticed, made = {OLDER: 0, MISSING: 0}, {OLDER: 0, MISSING: 0}
    for read in history.reads:
        for way, wrong in _made_wrong(fold, read):
            made[way] += 1
            noticed[way] += any(check_read(fold, wrong, {}))
    return {way: (noticed[way], made[way]) for way in made}


def _made_wrong(fold: Fold, read: Read) -> Iterator[tuple[str, Read]]:
    """A hit of a key with the value before, and as a miss."""
    if read.kind not in ("key", "batch") or read.as_of_ms is not None or read.status != 200 or not read.items:
        return
    (item, value), (partition,) = read.items[0], read.portions
    older = _value_before(fold.partition(read.store, partition), item, value)
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
