"""Availability: reads that failed and changes that were not shown, though nothing stood in their way."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import replace

from tests.chaos.fold import Fold
from tests.chaos.history import BOTH_ROUTERS, Calm, Fault, History, Read
from tests.chaos.promises import (
    AGE_OF_A_COMMIT_MS,
    ANSWERED,
    CALM_MARGIN_MS,
    CATCHING_UP_MS,
    CHANGE_WITHIN_MS,
    GENEROUS,
    LAG_WITHIN_MS,
    OF_ROUTERS,
    OF_STATE,
    OF_THE_LOG,
    OUT_OF_CALM_MS,
    SURVIVABLE,
    Violation,
)


def unavailable(history: History) -> Iterator[Violation]:
    """Reads through routers that failed though all was calm and their bounds were generous.

    Nor may they fail while a single fault leaves a router and replicas; of the log, if they have no bounds at all.
    """
    single = list(single_faults(history))
    returns = [fault.ended_ms for fault in history.faults if fault.kind in OF_THE_LOG]
    commits: dict[str, list[float]] = {}
    for record in history.records:
        if record.committed_ms is not None:
            commits.setdefault(record.store, []).append(record.committed_ms)
    for read in history.reads:
        if read.status in ANSWERED or read.tier != "router" or read.kind == "change" or read.followed is not None:
            continue
        if read.problem in OF_STATE or read.require_active or read.min_position:
            continue
        if not all(bound >= GENEROUS[name] for name, bound in read.bounds.items()):
            continue
        if read.problem == "lag-exceeds-tolerance" and _is_old(read, commits.get(read.store, [])):
            continue
        if is_within(history.calms, read.sent_ms - CALM_MARGIN_MS, read.received_ms + CALM_MARGIN_MS):
            yield Violation("unavailable", f"{read.status} {read.problem}", read)
        if read.problem == "no-replica" and any(_is_caught_up_with(read, returned_ms) for returned_ms in returns):
            continue
        for fault in single:
            if _is_survived(fault, read) and not history.overloaded(read.sent_ms, read.received_ms):
                yield Violation("unavailable", f"{read.status} {read.problem} during {fault.kind} alone", read)


def single_faults(history: History) -> Iterator[Fault]:
    """The faults that came alone out of a calm, each as if it lasted until the next calm, or the next fault."""
    episodes: dict[int, list[Fault]] = {}
    for fault in history.faults:
        episodes.setdefault(fault.episode, []).append(fault)
    for fault, *others in episodes.values():
        was_calm = any(0 <= fault.began_ms - calm.ended_ms < OUT_OF_CALM_MS for calm in history.calms)
        if was_calm and not others:
            following = [calm.began_ms for calm in history.calms if calm.began_ms > fault.began_ms]
            # The calm between may not count, since the machine was overloaded then.
            following += [other.began_ms for other in history.faults if other.episode > fault.episode]
            yield replace(fault, ended_ms=min(following, default=fault.ended_ms))


def _is_survived(fault: Fault, read: Read) -> bool:
    """Whether a fault left who could answer a read."""
    if read.sent_ms < fault.began_ms or read.received_ms > fault.ended_ms:
        return False
    if fault.kind in OF_ROUTERS:
        return read.target not in (fault.target, BOTH_ROUTERS)
    return fault.kind in SURVIVABLE or (fault.kind in OF_THE_LOG and not read.bounds)


def _is_old(read: Read, commits: list[float]) -> bool:
    """Whether a read's bound on the age may not be met because the writer has written nothing lately."""
    last_ms = max((commit for commit in commits if commit <= read.received_ms), default=-math.inf)
    return read.received_ms - last_ms + AGE_OF_A_COMMIT_MS > read.bounds.get("max_age_ms", math.inf)


def _is_caught_up_with(read: Read, returned_ms: float) -> bool:
    """Whether replicas may have been reading, during a read, what a log had when it returned."""
    return read.received_ms >= returned_ms and read.sent_ms <= returned_ms + CATCHING_UP_MS


def is_within(calms: list[Calm], began_ms: float, ended_ms: float) -> bool:
    """Whether an interval lies in one of some calms, which are in order."""
    at = bisect.bisect_right(calms, began_ms, key=lambda calm: calm.began_ms) - 1
    return at >= 0 and ended_ms <= calms[at].ended_ms


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
    eras = fold.partition(first.store, partition)
    # Nobody has to be shown what was lost.
    versions = eras.newest.history(item)
    times = [read.received_ms for read, _ in shown]
    positions = [max(portion.position for portion in read.portions.values()) for read, _ in shown]
    for index in versions.committed_between(events[0].received_ms, events[-1].received_ms):
        version = versions.versions[index]
        if versions.is_absent(index) and versions.is_absent(index - 1):
            # What did not exist was deleted: nobody can see that.
            continue
        due_ms = version.committed_ms + CHANGE_WITHIN_MS
        if not is_within(calms, version.committed_ms - CALM_MARGIN_MS, due_ms):
            continue
        if _is_interrupted(events, version.committed_ms, due_ms):
            continue
        since = bisect.bisect_left(times, eras.began_ms(version.committed_ms))
        seen = max(positions[since : bisect.bisect_right(times, due_ms)], default=0)
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


def silent_streams(history: History) -> Iterator[Violation]:
    """Streams of a store that did not say how far behind they are, though all was calm."""
    since: dict[str, float] = {}
    for read in sorted(history.reads, key=lambda read: read.received_ms):
        if read.followed is None:
            continue
        stream, event = read.followed.stream, read.followed.event
        began_ms = since.get(stream, read.received_ms)
        if event in ("opened", "lag"):
            since[stream] = read.received_ms
        if event == "ended":
            since.pop(stream, None)
        if event in ("lag", "ended") and _is_silent(history.calms, read, began_ms):
            yield Violation("silent-stream", f"for {read.received_ms - began_ms:.0f} ms", read)


def _is_silent(calms: list[Calm], read: Read, began_ms: float) -> bool:
    if not all(bound >= GENEROUS[name] for name, bound in read.bounds.items()):
        return False
    return any(
        min(calm.ended_ms, read.received_ms) - max(calm.began_ms + CALM_MARGIN_MS, began_ms) > LAG_WITHIN_MS
        for calm in calms
    )
