"""What was read of each store in a second: counts that several processes add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from forebay.lag import Lag

_Counts = tuple[int, ...]


class StoreCounts(NamedTuple):
    """A store's counters, which only grow: results of reads, problems by name, and histograms by bucket."""

    reads: int
    problems: Mapping[str, int]
    answer_ms: _Counts
    served: tuple[_Counts, ...]
    """Record lag, time lag and age of answers."""


class StoreSample(NamedTuple):
    """One second of one store; ``counts`` is None if nothing was read."""

    at_s: int
    lag: Lag
    counts: StoreCounts | None = None


def difference(now: StoreCounts, before: StoreCounts | None) -> StoreCounts | None:
    """What was counted since; None if nothing was."""
    if before is None or now.reads == before.reads:
        return None if before is not None or now.reads == 0 else now
    problems = {
        name: grown for name, count in now.problems.items() if (grown := count - before.problems.get(name, 0))
    }
    served = tuple(_minus(*pair) for pair in zip(now.served, before.served or ((),) * 3, strict=True))
    return StoreCounts(now.reads - before.reads, problems, _minus(now.answer_ms, before.answer_ms), served)


def _minus(now: _Counts, before: _Counts) -> _Counts:
    return tuple(a - b for a, b in zip(now, before, strict=True)) if before else now


def added(several: Iterable[Sequence[int]]) -> _Counts:
    """The sum of several histograms' counts, of which those of no figure may be empty."""
    return tuple(map(sum, zip(*filter(None, several), strict=True)))


def total(counts: Iterable[StoreCounts]) -> StoreCounts | None:
    """The sum of several counts; None of none."""
    found = list(counts)
    problems = sum((Counter(count.problems) for count in found), Counter[str]())
    served = tuple(map(added, zip(*(count.served for count in found if count.served), strict=True)))
    answer_ms = added(count.answer_ms for count in found)
    return StoreCounts(sum(count.reads for count in found), dict(problems), answer_ms, served) if found else None
