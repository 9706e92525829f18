"""What a run showed, in figures: by kind of fault, the reads, their waits for an answer, and what was violated."""

from __future__ import annotations

import bisect
import collections
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.history import Fault, History, Read
from tests.chaos.promises import ANSWERED, STREAMS, Violation
from tests.chaos.sensitivity import sensitivity
from tests.chaos.sometimes import possible, unreached

TOGETHER = "several together"
NO_FAULT = "none"
RECOVERY_MS = 3_000.0
"""Reads that begin this long after a fault has ended count to it."""


@dataclass(frozen=True)
class FaultResult:
    """What happened during the faults of one kind, or without any."""

    times: int
    reads: int
    refused: int
    """Answered, but with 412: the bounds could not be met."""
    failed: int
    """Answered with 429, 503 or 504, or not at all."""
    violations: int
    waits_ms: Mapping[str, int]
    """How many of the reads that any replica may answer waited so many milliseconds for an answer."""


@dataclass(frozen=True)
class Result:
    """One run, or several that were added up."""

    runs: tuple[Mapping[str, Any], ...]
    """Of each run: its command, date, commit and length."""
    log: str
    records: int
    aborted: int
    reads: Mapping[str, int]
    """By kind of read."""
    faults: Mapping[str, FaultResult]
    violations: Mapping[str, int]
    reached: Mapping[str, bool]
    noticed: Mapping[str, Sequence[int]]
    """By way of making answers wrong, in how many the judge noticed it, and how many were made."""

    def to_json(self) -> str:
        """The result as a document."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """The inverse of ``to_json``."""
        document = json.loads(text)
        faults = {kind: FaultResult(**fault) for kind, fault in document["faults"].items()}
        return cls(**{**document, "faults": faults, "runs": tuple(document["runs"])})

    def plus(self, other: Result) -> Result:
        """Both together; they must be of the same kind of log."""
        empty = FaultResult(0, 0, 0, 0, 0, {})
        faults = {
            kind: _sum(self.faults.get(kind, empty), other.faults.get(kind, empty))
            for kind in sorted(self.faults.keys() | other.faults.keys())
        }
        return Result(
            (*self.runs, *other.runs),
            self.log,
            self.records + other.records,
            self.aborted + other.aborted,
            _added(self.reads, other.reads),
            faults,
            _added(self.violations, other.violations),
            {
                name: self.reached.get(name, False) or other.reached.get(name, False)
                for name in [*self.reached, *(other.reached.keys() - self.reached.keys())]
            },
            {
                way: [
                    a + b
                    for a, b in zip(self.noticed.get(way, (0, 0)), other.noticed.get(way, (0, 0)), strict=True)
                ]
                for way in {**self.noticed, **other.noticed}
            },
        )


def result_of(history: History, violations: list[Violation], log: str, run: Mapping[str, Any]) -> Result:
    """The figures of one run."""
    missed = unreached(history, log)
    return Result(
        (run,),
        log,
        len(history.records),
        sum(record.committed_ms is None for record in history.records),
        dict(collections.Counter(read.kind for read in history.reads)),
        _by_fault(history, violations),
        dict(collections.Counter(violation.kind for violation in violations)),
        {sometimes.name: sometimes not in missed for sometimes in possible(history, log)},
        {way: list(counts) for way, counts in sensitivity(history).items()},
    )


def percentile(waits_ms: Mapping[str, int], share: float) -> int:
    """The wait that this share of reads did not exceed, in milliseconds."""
    due = share * sum(waits_ms.values())
    seen = 0
    for wait_ms in sorted(map(int, waits_ms)):
        seen += waits_ms[str(wait_ms)]
        if seen >= due:
            return wait_ms
    return 0


def _sum(one: FaultResult, other: FaultResult) -> FaultResult:
    return FaultResult(
        one.times + other.times,
        one.reads + other.reads,
        one.refused + other.refused,
        one.failed + other.failed,
        one.violations + other.violations,
        _added(one.waits_ms, other.waits_ms),
    )


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(collections.Counter(one) + collections.Counter(other))


def _by_fault(history: History, violations: list[Violation]) -> dict[str, FaultResult]:
    periods = _periods(history.faults)
    broken = collections.Counter(id(violation.read) for violation in violations if violation.read is not None)
    waits = dict(_waits(history.reads))
    split: dict[str, list[Read]] = {}
    for read in history.reads:
        split.setdefault(_kind_at(periods, read.sent_ms), []).append(read)
    times = collections.Counter(kind for _, _, kind in periods)
    return {kind: _of_reads(times[kind], reads, broken, waits) for kind, reads in sorted(split.items())}


def _of_reads(times: int, reads: list[Read], broken: Mapping[int, int], waits: Mapping[int, int]) -> FaultResult:
    failed = [read for read in reads if read.status in (0, 429, 503, 504) and read.kind not in STREAMS]
    counted = collections.Counter(str(waits[id(read)]) for read in reads if id(read) in waits)
    return FaultResult(
        times,
        len(reads),
        sum(read.status == 412 for read in reads),
        len(failed),
        sum(broken.get(id(read), 0) for read in reads),
        dict(counted),
    )


def _periods(faults: Iterable[Fault]) -> list[tuple[float, float, str]]:
    """When each episode's faults began and ended, and their kind."""
    episodes: dict[int, list[Fault]] = {}
    for fault in faults:
        episodes.setdefault(fault.episode, []).append(fault)
    return [
        (
            min(fault.began_ms for fault in some),
            max(fault.ended_ms for fault in some) + RECOVERY_MS,
            some[0].kind if len(some) == 1 else TOGETHER,
        )
        for some in episodes.values()
    ]


def _kind_at(periods: list[tuple[float, float, str]], time_ms: float) -> str:
    return next((kind for began, ended, kind in periods if began <= time_ms <= ended), NO_FAULT)


def _waits(reads: Iterable[Read]) -> Iterable[tuple[int, int]]:
    """By read that any replica may answer, how long its client waited for an answer.

    What failed waits for the next read of its partition that was answered, through either router.
    """
    answered = _answer_times(reads)
    for read in reads:
        if read.partition is None or read.tier != "router" or not _any_may_answer(read):
            continue
        if read.status in ANSWERED:
            yield id(read), round(read.received_ms - read.sent_ms)
            continue
        times = answered.get((read.store, read.partition), [])
        at = bisect.bisect_left(times, read.received_ms)
        if at < len(times):
            yield id(read), round(times[at] - read.sent_ms)


def _answer_times(reads: Iterable[Read]) -> dict[tuple[str, int], list[float]]:
    """When keys of each partition were answered through a router."""
    times: dict[tuple[str, int], list[float]] = {}
    for read in reads:
        if read.tier == "router" and read.kind in ("key", "batch") and read.status in ANSWERED:
            for partition in read.portions:
                times.setdefault((read.store, partition), []).append(read.received_ms)
    return {partition: sorted(some) for partition, some in times.items()}


def _any_may_answer(read: Read) -> bool:
    return not (read.bounds or read.require_active or read.min_position or read.session)
