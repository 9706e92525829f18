"""What followers have built from streams of a store's changes, compared with the fold of the log.

Each item that a follower shows is right for positions up to the item's next change. So a heap of those positions
tells, at each offset that the stream claims, whether anything that was due is missing: linear but for a logarithm.

After a log was cut, a replica may send the store as it was, until it has found the log again. So a
partition is followed in every era that it may be of, and an era that does not explain what is sent is ruled out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tests.chaos.fold import Eras, Fold, PartitionFold
from tests.chaos.history import Followed, Item, Reached, Read, named_ms
from tests.chaos.promises import CLOCK_SLACK_MS, END_OFFSET_MAX_AGE_MS, LAG_FRESH_MS, Violation

_ANY = 1 << 62
"""A position beyond all logs."""


def built_states(fold: Fold, reads: Iterable[Read]) -> Iterator[Violation]:
    """The violations of all streams, of reads in the order in which they were received."""
    streams: dict[str, BuiltState] = {}
    for read in reads:
        if (followed := read.followed) is not None:
            built = streams.setdefault(followed.stream, BuiltState(fold, read.store, followed))
            yield from built.take(read, followed)


class BuiltState:
    """What one follower has of a store, through all its connections."""

    def __init__(self, fold: Fold, store: str, followed: Followed) -> None:
        self._fold, self._store, self._followed = fold, store, followed
        self._parts: dict[int, list[BuiltPartition]] = {}
        """Of each partition one for each era that it may be of, the last first."""

    def take(self, read: Read, followed: Followed) -> Iterator[Violation]:
        """Follow one event, and judge what was built then."""
        match followed.event:
            case "opened":
                self._open(read, followed)
            case "reset":
                for partition in followed.partitions:
                    self._reset(partition, read)
            case "values" | "absent":
                yield from self._show(read)
            case "lag":
                yield from self._check_lag(read, followed)
        if followed.event not in ("opened", "ended") and followed.reached is not None:
            yield from self._check_id(read, followed.reached)

    def _possible(self, partition: int, read: Read) -> list[BuiltPartition]:
        eras = self._fold.partition(self._store, partition)
        if partition not in self._parts:
            part = BuiltPartition(eras, eras.at(read.received_ms), self._store, self._followed)
            self._parts[partition] = part.in_eras(0, part.era)
        return self._parts[partition]

    def _judged(
        self, partition: int, read: Read, judge: Callable[[BuiltPartition], Iterable[Violation]], named_ms: float
    ) -> list[Violation]:
        """What is wrong of a partition in the last era that it may be of, unless nothing is in an earlier one.

        A lag names a time, and excludes the eras before that.
        """
        possible = self._possible(partition, read)
        first = possible[0].eras.at(named_ms - LAG_FRESH_MS)
        present = possible[0].eras.at(read.received_ms)
        if possible[0].era < present and all(part.is_empty for part in possible):
            # Of what was reset, nothing was sent before the cut.
            possible = possible[-1].in_eras(possible[-1].era, present)
        possible = [part for part in possible if part.era >= first]
        if not possible:
            self._reset(partition, read)
            return [
                Violation("missing-reset", f"partition {partition} is as it was before records were lost", read)
            ]
        tried = [(part, list(judge(part))) for part in possible]
        self._parts[partition] = [part for part, violations in tried if not violations] or possible[:1]
        return min((violations for _, violations in tried), key=bool)

    def _reset(self, partition: int, read: Read) -> None:
        part, *_ = self._possible(partition, read)
        part.reset()
        self._parts[partition] = part.in_eras(0, part.eras.at(read.received_ms))

    def _open(self, read: Read, followed: Followed) -> None:
        """A new connection: what the id does not have whole, the service is to send again."""
        reached = followed.reached or {}
        for partition, (part, *others) in self._parts.items():
            present = part.eras.at(read.received_ms)
            if partition not in reached or not reached[partition].since:
                for one in (part, *others):
                    one.forget()
            elif part.era < present and reached[partition].upper <= part.eras.common_end(part.era, present):
                self._parts[partition] = part.in_eras(part.era, present)

    def _show(self, read: Read) -> Iterator[Violation]:
        ((partition, portion),) = read.portions.items()

        def judge(part: BuiltPartition) -> Iterator[Violation]:
            if not part.known:
                yield Violation("missing-reset", f"partition {partition} was neither reset nor resumed", read)
                part.reset()
            for item, value in read.items:
                if not self._followed.covers(item):
                    yield Violation("unfollowed-item", f"{item} is not followed", read)
                elif not part.show(item, value, portion.position):
                    yield Violation("went-back", f"{item} is older than it was shown before", read)

        yield from self._judged(partition, read, judge, portion.named_ms(read.received_ms))

    def _check_id(self, read: Read, reached: Mapping[int, Reached]) -> Iterator[Violation]:
        for partition, offsets in reached.items():
            if offsets.since:
                detail = f"the id has partition {partition}, which was never sent"
                unknown = Violation("missing-reset", detail, read)
                yield from self._check_sent(partition, unknown, offsets.upper, offsets.since)

    def _check_lag(self, read: Read, followed: Followed) -> Iterator[Violation]:
        figures, reached = _figures(followed), followed.reached
        for name, bound in read.bounds.items():
            figure = figures[name]
            if figure is None or figure > bound:
                yield Violation("beyond-bounds", f"{name}={bound}, and the figure is {figure}", read)
        for partition in self._stated(read, followed):
            upper = reached[partition].upper if reached and partition in reached else _ANY
            unknown = Violation("missing-change", f"the state of partition {partition} was never sent", read)
            yield from self._check_sent(partition, unknown, upper)

    def _check_sent(
        self, partition: int, unknown: Violation, upper: int, since: int | None = None
    ) -> list[Violation]:
        """What was not sent of what is before an offset, by default the one that the lag names.

        ``unknown`` is the violation if nothing was.
        """
        read = unknown.read
        assert read is not None
        assert read.followed is not None
        followed = read.followed

        def judge(part: BuiltPartition) -> Iterator[Violation]:
            if not part.known:
                yield unknown
                part.reset()
            part.complete(upper)
            yield from _missing(part, read, _floor(part.log, read, followed) if since is None else since, upper)

        named = named_ms(read.received_ms, *_figures(followed).values()) if since is None else -math.inf
        return self._judged(partition, read, judge, named)

    def _stated(self, read: Read, followed: Followed) -> Iterable[int]:
        """The partitions of which a lag speaks: all that are followed, at a worker those that it holds."""
        if read.tier == "router":
            return followed.partitions
        return [partition for partition in followed.partitions if partition in (followed.reached or {})]


class BuiltPartition:
    """What a follower has of one partition, if its log is as it was in an era."""

    def __init__(self, eras: Eras, era: int, store: str, followed: Followed) -> None:
        self.eras, self.era = eras, era
        self.log = log = eras.logs[era]
        self._store, self._followed = store, followed
        self.known = False
        """Whether its state was sent, or is being sent."""
        items = log.keys if store == VERSIONED else log.items
        self._items = [item for item in items if followed.covers(item)]
        self._is_complete = False
        self._seen: dict[Item, int] = {}
        """The earliest version that explains all that was ever shown of an item."""
        self._shown: dict[Item, int] = {}
        self._until: dict[Item, float] = {}
        """The position up to which what is shown is right."""
        self._heap: list[tuple[float, Item]] = []

    def in_eras(self, first: int, last: int) -> list[BuiltPartition]:
        """The same in some eras, the last first, all of which have what is shown."""
        return [self._in_era(era) for era in range(last, first - 1, -1)]

    def _in_era(self, era: int) -> BuiltPartition:
        other = BuiltPartition(self.eras, era, self._store, self._followed)
        end = self.eras.common_end(self.era, era)
        other.known, other._is_complete = self.known, self._is_complete
        for item, index in self._seen.items():
            history, its = self.log.history(item), other.log.history(item)
            other._seen[item] = its.index_at(min(history.earliest_position(index), end))
        for item, index in self._shown.items():
            # What was before a beginning that has moved is taken for absent: nobody can tell of its deletion.
            other._show_version(item, self.log.history(item).same_in(other.log.history(item), index))
        return other

    @property
    def is_empty(self) -> bool:
        """Whether nothing was sent of it."""
        return not self._shown

    def forget(self) -> None:
        """Nothing is shown any more."""
        self.known = self._is_complete = False
        self._shown, self._until, self._heap = {}, {}, []

    def reset(self) -> None:
        """The state follows."""
        self.forget()
        self.known = True

    def complete(self, upper: int) -> None:
        """All of the state was sent: what is not shown does not exist."""
        if self._is_complete:
            return
        self._is_complete = True
        for item in self._items:
            if item not in self._shown:
                self._show_version(item, self._newest_absence(item, upper))

    def show(self, item: Item, value: Any, position: int) -> bool:
        """Follow a value, None for a deletion; returns whether it is no older than what was seen before."""
        history = self.log.history(item)
        index = history.shown_by(item, value, history.index_at(position))
        if index is None:
            # Each answer's values are judged elsewhere.
            return True
        seen = self._seen.get(item, -1)
        least = index
        if value is None:
            least = next((i for i in range(seen, index + 1) if history.is_absent(i)), -2)
        self._seen[item] = max(seen, least)
        self._show_version(item, index)
        return least >= seen

    def missing(self, floor: int, upper: int) -> Iterator[Item]:
        """Items that are shown as of before a floor, though they have changed since; each once."""
        while self._heap and self._heap[0][0] < floor:
            until, item = heapq.heappop(self._heap)
            if self._until.get(item) != until:
                continue
            if self.log.history(item).is_absent(self._shown[item]):
                # It may have existed for a while, of which nobody has to be told.
                self._show_version(item, self._newest_absence(item, upper))
                if self._until[item] >= floor:
                    continue
            self._until[item] = math.inf
            yield item

    def _newest_absence(self, item: Item, upper: int) -> int:
        history = self.log.history(item)
        newest = history.shown_by(item, None, history.index_at(upper))
        return -1 if newest is None else newest

    def _show_version(self, item: Item, index: int) -> None:
        self._shown[item] = index
        until = self._until[item] = self.log.history(item).latest_position(index)
        heapq.heappush(self._heap, (until, item))


VERSIONED = "prices"
"""The store whose items are keys, each shown in its newest version."""


def _missing(part: BuiltPartition, read: Read, floor: int, upper: int) -> Iterator[Violation]:
    for item in part.missing(floor, upper):
        history = part.log.history(item)
        kind = "missing-deletion" if history.is_absent(history.index_at(floor)) else "missing-change"
        yield Violation(kind, f"{item} is not as of {floor}", read)


def _figures(followed: Followed) -> Mapping[str, int | None]:
    assert followed.lag is not None
    return dict(zip(("max_record_lag", "max_time_lag_ms", "max_age_ms"), followed.lag, strict=True))


def _floor(log: PartitionFold, read: Read, followed: Followed) -> int:
    """The offset before which a lag says that every change was sent."""
    figures = _figures(followed)
    floors = [0]
    if (time_lag_ms := figures["max_time_lag_ms"]) is not None:
        floors.append(log.written.at(read.sent_ms - time_lag_ms))
    if (age_ms := figures["max_age_ms"]) is not None:
        floors.append(log.generated.at(read.sent_ms - age_ms - CLOCK_SLACK_MS))
    if (record_lag := figures["max_record_lag"]) is not None and "max_record_lag" in read.bounds:
        end = log.committed.at(read.sent_ms - END_OFFSET_MAX_AGE_MS - LAG_FRESH_MS)
        floors.append(end - record_lag)
    return max(floors)
