"""Availability: reads that failed and changes that were not shown, though nothing stood in their way."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from tests.chaos.fold import Fold
from tests.chaos.history import Calm, Fault, History, Read
from tests.chaos.promises import (
    ANSWERED,
    CALM_MARGIN_MS,
    CHANGE_WITHIN_MS,
    GENEROUS,
    OUT_OF_CALM_MS,
    SURVIVABLE,
    Violation,
)


def unavailable(history: History) -> Iterator[Violation]:
    """Reads through routers that failed though all was calm and their bounds were generous.

    Without any bound, nor may a read fail while one fault alone leaves a router and a replica of each partition.
    """
    survived = list(_survived(history))
    for read in history.reads:
        if read.status in ANSWERED or read.tier != "router" or read.kind == "change":
            continue
        if read.problem == "position-not-reached" or read.require_active or read.min_position:
            continue
        generous = all(bound >= GENEROUS[name] for name, bound in read.bounds.items())
        began_ms, ended_ms = read.sent_ms - CALM_MARGIN_MS, read.received_ms + CALM_MARGIN_MS
        if generous and is_within(history.calms, began_ms, ended_ms):
            yield Violation("unavailable", f"{read.status} {read.problem}", read)
        elif not read.bounds and is_within(survived, read.sent_ms, read.received_ms):
            yield Violation("unavailable", f"{read.status} {read.problem} during a single fault", read)


def _survived(history: History) -> Iterator[Calm]:
    """The times of single faults after a calm that leave a replica of each partition, until the next calm."""
    episodes: dict[int, list[Fault]] = {}
    for fault in history.faults:
        episodes.setdefault(fault.episode, []).append(fault)
    for faults in episodes.values():
        began_ms = faults[0].began_ms
        was_calm = any(0 <= began_ms - calm.ended_ms < OUT_OF_CALM_MS for calm in history.calms)
        if len(faults) == 1 and faults[0].kind in SURVIVABLE and was_calm:
            following = [calm.began_ms for calm in history.calms if calm.began_ms > began_ms]
            yield Calm(began_ms, min(following, default=faults[0].ended_ms))


def is_within(calms: list[Calm], began_ms: float, ended_ms: float) -> bool:
    """Whether an interval lies in one of some calms."""
    return any(calm.began_ms <= began_ms and ended_ms <= calm.ended_ms for calm in calms)


def missed_changes(fold: Fold, history: History) -> Iterator[Violation]:
    """Changes that a stream did not show in time, though all was calm."""
    streams: dict[str, list[Read]] = {}
    for read in history.reads:
        if read.kind == "change":
            streams.setdefault(read.session, []).append(read)
    for events in streams.values():
        yield from _missed_by(fold, history.calms, sorted(events, key=lambda read: read.received_ms))


def _missed_by(fold: Fold, calms: list[Calm], events: list[Read]) -> Iterator[Violation]:
    shown = [(read, partition) for read in events if read.items for partition in read.portions]
    if not shown:
        return
    first, partition = shown[0]
    ((item, _),) = first.items
    versions = fold.partition(first.store, partition).history(item)
    times = [read.received_ms for read, _ in shown]
    positions = [max(portion.position for portion in read.portions.values()) for read, _ in shown]
    for index, version in enumerate(versions.versions):
        if versions.is_absent(index) and versions.is_absent(index - 1):
            # What did not exist was deleted: nobody can see that.
            continue
        due_ms = version.committed_ms + CHANGE_WITHIN_MS
        if not is_within(calms, version.committed_ms - CALM_MARGIN_MS, due_ms):
            continue
        if _is_interrupted(events, version.committed_ms, due_ms):
            continue
        seen = max(positions[: bisect.bisect_right(times, due_ms)], default=0)
        if seen <= version.offset:
            yield Violation("missed-change", f"{item} of offset {version.offset}", first)


def _is_interrupted(events: list[Read], began_ms: float, ended_ms: float) -> bool:
    """Whether a stream had not begun, was without an answer, or ended at some time of an interval."""
    times = [read.received_ms for read in events]
    first = bisect.bisect_right(times, began_ms) - 1
    last = bisect.bisect_right(times, ended_ms)
    if first < 0 or last == len(events):
        return True
    return any(read.status not in ANSWERED for read in events[first:last])
