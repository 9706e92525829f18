"""Judges a history: every answer against the fold of the log, and the run against what is promised of it.

Pure, and linear in the history but for look-ups by bisection: each item is a fold of one log, so there is no order
of operations to be searched for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from tests.chaos.availability import is_within, missed_changes, silent_streams, unavailable
from tests.chaos.built_state import built_states
from tests.chaos.fold import Clocks, Eras, Fold, ItemHistory, PartitionFold
from tests.chaos.history import Calm, History, Item, Portion, Read, Scope
from tests.chaos.key_doubts import unstated_doubts
from tests.chaos.promises import (
    ANSWERED,
    CLOCK_SLACK_MS,
    END_OFFSET_MAX_AGE_MS,
    EVENT_TRANSIT_MS,
    EXPECTED,
    KINDS,
    SHORT_LOG,
    STREAMS,
    UNPROVEN_MS,
    Violation,
)


@dataclass(frozen=True)
class Floor:
    """What a position must have reached, and the violation if it has not."""

    position: float
    """Infinite if nothing can reach it any more."""
    kind: str


class Seen(NamedTuple):
    """Up to where a session has seen a partition, and in which era of its log."""

    era: int
    position: float


Sessions: TypeAlias = dict[tuple[str, str, int], Seen]
"""What each session has seen, by store and partition."""


def check(history: History) -> list[Violation]:
    """Every violation of a run.

    What an overloaded machine did late, or not at all, is none. What it answered is judged as ever.
    """
    history = _with_time(history)
    fold = Fold(history.records, history.cuts, history.faults)
    violations = [Violation(found.kind, found.detail) for found in history.findings if found.kind in KINDS]
    sessions: Sessions = {}
    reads = [_timed(history.calms, read) for read in sorted(history.reads, key=lambda read: read.received_ms)]
    for read in reads:
        violations += check_read(fold, read, sessions)
    violations += built_states(fold, reads)
    violations += unavailable(history)
    violations += missed_changes(fold, history)
    violations += silent_streams(history)
    violations += unstated_doubts(fold, history)
    return violations


def _with_time(history: History) -> History:
    """A history without the calms, and without the failures to converge, of an overloaded machine."""
    calms = [calm for calm in history.calms if not history.overloaded(calm.began_ms, calm.ended_ms)]
    findings = [
        found
        for found in history.findings
        if found.kind != "not-converged" or not history.overloaded(found.at_ms, found.at_ms)
    ]
    return replace(history, calms=calms, findings=findings)


def _timed(calms: list[Calm], read: Read) -> Read:
    """An event of a stream, which was requested long ago, as if it was requested when it can have been made."""
    made_ms = read.received_ms - EVENT_TRANSIT_MS
    if read.kind not in STREAMS or made_ms <= read.sent_ms or not is_within(calms, made_ms, read.received_ms):
        return read
    return replace(read, sent_ms=made_ms)


def check_read(fold: Fold, read: Read, sessions: Sessions) -> Iterator[Violation]:
    """The violations of one answer."""
    if read.status != 0 and read.problem not in EXPECTED.get(read.status, ()):
        yield Violation("undocumented-status", f"{read.status} {read.problem}", read)
    elif read.status == 421 and read.tier == "router":
        yield Violation("undocumented-status", "421 from a router", read)
    elif read.status == 409 and not fold.was_cut(read.store, read.received_ms):
        yield Violation("undocumented-status", "409, though nothing was lost", read)
    if read.status not in ANSWERED:
        return
    yield from _beyond_bounds(read)
    if read.scope is not None:
        yield from _disordered(read)
    for partition, portion in read.portions.items():
        yield from _check_in_an_era(fold, read, partition, portion, sessions)


def _beyond_bounds(read: Read) -> Iterator[Violation]:
    for portion in read.portions.values():
        if read.require_active and portion.role != "active":
            yield Violation("not-active", f"answered by a {portion.role}", read)
        for name, bound in read.bounds.items():
            figure = portion.figures[name]
            if figure is None or figure > bound:
                yield Violation("beyond-bounds", f"{name}={bound}, and the figure is {figure}", read)


def _disordered(read: Read) -> Iterator[Violation]:
    assert read.scope is not None
    items = [item for item, _ in read.items]
    if items != sorted(set(items), reverse=read.scope.reverse):
        yield Violation("disordered-list", "out of order, or an item twice", read)
    strangers = [item for item in items if not read.scope.covers(item)]
    if strangers:
        yield Violation("disordered-list", f"{strangers[0]} is outside the range", read)


def _check_in_an_era(
    fold: Fold, read: Read, partition: int, portion: Portion, sessions: Sessions
) -> list[Violation]:
    """The violations in the last era that an answer may be of, unless it has none in an earlier one.

    Who has not found the log again has the store as it was before records were lost, and at most a lag since then.
    """
    key, eras = (read.session, read.store, partition), fold.partition(read.store, partition)
    first, last = eras.at(portion.named_ms(read.sent_ms)), eras.at(read.received_ms)
    tried: list[tuple[list[Violation], Sessions]] = []
    for era in range(last, first - 1, -1):
        own = {key: sessions.get(key, Seen(era, 0))} if read.session else {}
        tried.append((list(_check_portion(fold, era, read, partition, portion, own)), own))
        if not tried[-1][0]:
            break
    violations, own = min(tried, key=lambda one: bool(one[0]))
    sessions |= own
    return violations


def _check_portion(
    fold: Fold, era: int, read: Read, partition: int, portion: Portion, sessions: Sessions
) -> Iterator[Violation]:
    eras = fold.partition(read.store, partition)
    log = eras.logs[era]
    # Without an epoch it is the same offset in all eras.
    wanted_era = era if read.position_ms is None else eras.at(read.position_ms)
    wanted = Seen(wanted_era, read.min_position.get(partition, 0))
    floors = [Floor(_due(eras, era, read, wanted), "position-not-reached")]
    floors += _floors(log, read, portion)
    for floor in floors:
        if portion.position < floor.position:
            yield Violation(floor.kind, f"position {portion.position}, but {floor.position} is due", read)
    seen = (read.session, read.store, partition)
    if read.session:
        due = _due(eras, era, read, sessions[seen])
        if due == math.inf:
            yield Violation("went-back", "answered, though what the session has seen is lost", read)
            due = 0
        floors.append(Floor(due, "went-back"))
        sessions[seen] = Seen(era, due)
    if (read.status == 404 or read.scope is not None) and _is_cold(log, read, portion):
        kind = "silent-miss" if read.status == 404 else "short-list"
        yield Violation(kind, f"by a replica that lacks {portion.record_lag} records, all that there are", read)
    found, clocks = dict(read.items), fold.clocks(read.sent_ms, read.received_ms)
    for item, value in _items_of(fold, read, partition):
        history = log.history(item)
        index = _index_of(read, item, value, history, portion.position, clocks)
        if index is None or (index < 0 and read.scope is not None):
            yield Violation("wrong-value", f"{item} is {value}", read)
            continue
        is_missing = value is None and read.kind != "versions"
        due = [*floors, *_floor_of_misses(log, read, portion)] if is_missing else floors
        yield from _check_item(read, item, index, history, due, portion, is_missing=is_missing)
        if value is not None and _has_expired(log, item, index, history, floors, clocks):
            yield Violation("expired-value", f"{item} is shown as of version {index}", read)
        if read.session:
            least = _min_position(history, index, max(floor.position for floor in floors))
            sessions[seen] = Seen(era, max(sessions[seen].position, least))
    if read.scope is not None:
        yield from _short_list(log, read, read.scope, found, floors, portion, clocks)


def _is_cold(log: PartitionFold, read: Read, portion: Portion) -> bool:
    """Whether a replica counts its lag from the log's beginning: it was at no point of the log's history yet."""
    end = log.committed.at(read.sent_ms)
    return end >= SHORT_LOG and portion.record_lag is not None and portion.record_lag >= end


def _items_of(fold: Fold, read: Read, partition: int) -> Iterator[tuple[Item, Any]]:
    for item, value in read.items:
        if len(read.portions) == 1 or fold.partition_of.get((read.store, item[0]), partition) == partition:
            yield item, value


def _due(eras: Eras, era: int, read: Read, seen: Seen) -> float:
    """What an answer of an era must have reached; what a session has seen must not be lost, as a stream's may."""
    end = eras.common_end(seen.era, era)
    if seen.position <= end:
        return seen.position
    if read.kind in STREAMS and era > seen.era:
        return end
    # Of records that are compacted a replica knows no epoch.
    return math.inf if read.received_ms < eras.shown_until_ms(seen.era, era) else 0


def _floors(log: PartitionFold, read: Read, portion: Portion) -> list[Floor]:
    """The positions that an answer's lag claims to have reached, each with the violation if it has not."""
    floors: list[Floor] = []
    if portion.time_lag_ms is not None:
        floors.append(Floor(log.written.at(read.sent_ms - portion.time_lag_ms), "time-lag-understated"))
    if portion.age_ms is not None:
        source = log.generated.at(read.sent_ms - portion.age_ms - CLOCK_SLACK_MS)
        floors.append(Floor(source, "age-understated"))
    if portion.record_lag is not None and "max_record_lag" in read.bounds:
        # Only a bound limits how old the observation of the end may be.
        end = log.committed.at(read.sent_ms - END_OFFSET_MAX_AGE_MS)
        floors.append(Floor(end - portion.record_lag, "record-lag-understated"))
    return floors


def _has_expired(
    log: PartitionFold, item: Item, index: int, history: ItemHistory, floors: list[Floor], clocks: Clocks
) -> bool:
    """Whether what is shown had expired by the clock, or by what an answer must have reached of the log."""
    due = max(floor.position for floor in floors)
    return history.has_expired(index, clocks.earliest_ms) or log.is_past_retention(item, due)


def _index_of(
    read: Read, item: Item, value: Any, history: ItemHistory, position: int, clocks: Clocks
) -> int | None:
    """Which version an answer shows, the latest that it may be; None if the item never had the value."""
    newest = history.index_at(position)
    if read.as_of_ms is not None:
        newest = min(newest, history.index_as_of(read.as_of_ms))
    return history.shown_by(item, value, newest, clocks.latest_ms)


def _min_position(history: ItemHistory, index: int, due: float) -> int:
    """The lowest position that explains what was seen: several deletions look the same."""
    if history.is_absent(index):
        index = next((i for i in range(history.index_at(due), index) if history.is_absent(i)), index)
    return history.earliest_position(index)


def _floor_of_misses(log: PartitionFold, read: Read, portion: Portion) -> list[Floor]:
    if portion.time_lag_ms is not None:
        return []
    return [Floor(log.committed.at(read.sent_ms - UNPROVEN_MS), "silent-miss")]


def _check_item(
    read: Read,
    item: Item,
    index: int,
    history: ItemHistory,
    floors: list[Floor],
    portion: Portion,
    *,
    is_missing: bool,
) -> Iterator[Violation]:
    """The violations of one item that an answer shows as of a version."""
    if history.earliest_position(index) > portion.position:
        yield Violation("beyond-position", f"{item} is of offset {history.offsets[index]}", read)
    elif index >= 0 and history.versions[index].began_ms > read.received_ms:
        yield Violation("beyond-position", f"{item} was written after it was read", read)
    for floor in floors:
        due = history.index_at(floor.position)
        if read.as_of_ms is not None:
            due = min(due, history.index_as_of(read.as_of_ms))
        if index < due:
            kind = (
                "silent-miss"
                if is_missing and floor.kind not in ("went-back", "position-not-reached")
                else floor.kind
            )
            yield Violation(kind, f"{item} as of version {index}, though {due} is due by {floor}", read)
            return


def _short_list(
    log: PartitionFold,
    read: Read,
    scope: Scope,
    found: Mapping[Item, Any],
    floors: list[Floor],
    portion: Portion,
    clocks: Clocks,
) -> Iterator[Violation]:
    """Items that existed from the floor to the position, without being listed."""
    due = max(floor.position for floor in [*floors, *_floor_of_misses(log, read, portion)])
    for item, history in log.items.items() if scope.key is None else log.items_of(scope.key):
        if item in found or not scope.covers(item) or log.is_past_retention(item, portion.position):
            continue
        first, last = history.index_at(due), history.index_at(portion.position)
        absent = range(first, min(last, -1) + 1) if read.kind == "versions" else range(first, last + 1)
        if not any(history.is_absent(index, clocks.latest_ms) for index in absent):
            yield Violation("short-list", f"{item} is missing", read)
