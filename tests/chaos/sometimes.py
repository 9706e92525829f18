"""What a run must have reached to prove anything: a judge that never saw a failover has not judged one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos.history import History
from tests.chaos.topologies import TTL_MS
from tests.chaos.writer import is_lasting

SHARE = 0.8
"""Of what a run's faults make possible, it must have reached this share."""


@dataclass(frozen=True)
class Sometimes:
    """Something that a run with certain faults should reach."""

    name: str
    is_reached: Callable[[History], bool]
    needs: frozenset[str] = frozenset()
    """Kinds of faults of which one must have happened; any if empty."""
    log: str = ""
    """The kind of log that it needs; any if empty."""


def _role(role: str) -> Callable[[History], bool]:
    return lambda history: any(part.role == role for read in history.reads for part in read.portions.values())


def _problem(name: str) -> Callable[[History], bool]:
    return lambda history: any(read.problem == name for read in history.reads)


def _finding(kind: str) -> Callable[[History], bool]:
    return lambda history: any(found.kind == kind for found in history.findings)


def _standby_after_death(history: History) -> bool:
    deaths = [fault for fault in history.faults if fault.kind in _DEATHS]
    return any(
        death.began_ms <= read.received_ms <= death.ended_ms
        and any(portion.role == "standby" for portion in read.portions.values())
        for read in history.reads
        if read.tier == "router" and read.kind == "key"
        for death in deaths
    )


def _moved(kind: str) -> Callable[[History], bool]:
    """Whether a session or stream was answered by several hosts."""

    def is_reached(history: History) -> bool:
        hosts: dict[str, set[str]] = {}
        for read in history.reads:
            if read.session and read.kind == kind:
                hosts.setdefault(read.session, set()).update(portion.host for portion in read.portions.values())
        return any(len(some) > 1 for some in hosts.values())

    return is_reached


def _store_stream_resumed(history: History) -> bool:
    """Whether a connection that sent an id went on with a partition at another worker, without a reset."""
    hosts: dict[tuple[str, int], str] = {}
    resumed: dict[str, set[int]] = {}
    for read in history.reads:
        if (followed := read.followed) is None:
            continue
        stream = followed.stream
        if followed.event == "opened":
            reached = (followed.reached or {}).items()
            resumed[stream] = {partition for partition, offsets in reached if offsets.since}
        elif followed.event == "reset":
            resumed[stream] -= {*followed.partitions}
        for partition, portion in read.portions.items():
            before = hosts.get((stream, partition), portion.host)
            hosts[stream, partition] = portion.host
            if partition in resumed[stream]:
                resumed[stream].remove(partition)
                if portion.host != before:
                    return True
    return False


def _behind(history: History) -> bool:
    return any((part.time_lag_ms or 0) > _LONG_MS for read in history.reads for part in read.portions.values())


def _held_back(history: History) -> bool:
    return any(
        part.record_lag == 0 and (part.time_lag_ms or 0) > _HELD_BACK_MS
        for read in history.reads
        for part in read.portions.values()
    )


def _expired(history: History) -> bool:
    """Whether there was no value of a key that is never deleted, and had one before."""
    written_ms = {
        (record.store, record.item): record.written_ms
        for record in reversed(history.records)
        if record.store in TTL_MS and record.committed_ms is not None and is_lasting(record.item)
    }
    return any(
        value is None and written_ms.get((read.store, item), math.inf) < read.sent_ms
        for read in history.reads
        if read.status == 404
        for item, value in read.items
    )


def _clock_stepped(history: History) -> bool:
    """Whether an answer of a worker whose clock was stepped had no age, or one of about as long as the step."""
    steps = {fault.target: fault for fault in history.faults if fault.kind == "step-clock"}
    return any(
        (step := steps.get(part.host)) is not None
        and step.began_ms <= read.received_ms <= step.ended_ms
        and (part.age_ms is None or part.age_ms > _STEPPED_MS)
        for read in history.reads
        for part in read.portions.values()
    )


_HELD_BACK_MS = 500
_STEPPED_MS = 3_000_000
_LONG_MS = 1_000
_DEATHS = frozenset({"kill-worker", "kill-process", "kill-leader", "stop-worker", "stop-leader", "restart-storm"})
_LAGGING = frozenset(
    {"refuse-writes", "fill-disk", "read-only-disk", "freeze-broker", "kill-broker", "stop-broker"}
    | {"cut-broker", "hold-broker"}
)
_DAMAGE = frozenset({"damage-sst", "damage-manifest"})
ALL = (
    Sometimes("a standby answered after the active's death", _standby_after_death, _DEATHS),
    Sometimes("a restoring replica answered", _role("restoring"), frozenset({"wipe-state", "restart-storm"})),
    Sometimes("a bound was refused", _problem("lag-exceeds-tolerance")),
    Sometimes("an answer was long behind the log, and said so", _behind, _LAGGING),
    Sometimes("a position was not reached", _problem("position-not-reached"), _LAGGING),
    Sometimes("a read for actives only was refused", _problem("not-active")),
    Sometimes("a hedge won", _finding("forebay_router_hedges_won_total"), _DEATHS | {"hold-network"}),
    Sometimes("a read failed over", _finding("forebay_router_failovers_total"), _DEATHS | {"cut-network"}),
    Sometimes(
        "a replica was not ready to say that a key is missing", _problem("not-ready"), frozenset({"wipe-state"})
    ),
    Sometimes("a store was rebuilt after damage", _finding("rebuild"), _DAMAGE),
    Sometimes(
        "a replica that had missed tombstones was rebuilt", _finding("tombstones-missed"), _DEATHS, "sqlite"
    ),
    Sometimes("a replica found that its log had lost records", _finding("log-cut"), frozenset({"cut-log"})),
    Sometimes("a beginning that had moved was found", _finding("beginning-moved"), frozenset({"move-beginning"})),
    Sometimes("a position that was lost was refused", _problem("position-of-another-log"), frozenset({"cut-log"})),
    Sometimes(
        "a worker copied another's store", _finding("copied"), frozenset({"wipe-state", "scale-out", "scale-in"})
    ),
    Sometimes("a key was read from disk", _finding("forebay_disk_reads_total")),
    Sometimes("a value expired", _expired),
    Sometimes(
        "keys in other partitions left nothing proven",
        _problem("partitioner-mismatch"),
        frozenset({"misplace-keys", "add-partition"}),
    ),
    Sometimes("a session moved to another worker", _moved("key")),
    Sometimes("a stream moved to another worker", _moved("change"), _DEATHS | {"rolling-restart"}),
    Sometimes("a store's stream resumed at another worker", _store_stream_resumed),
    Sometimes("a store moved to another ordinal", _finding("relocated"), frozenset({"change-topology"})),
    Sometimes("a clock that was stepped left no age to rely on", _clock_stepped, frozenset({"step-clock"})),
    Sometimes("compaction removed records", _finding("compaction"), log="sqlite"),
    Sometimes("a transaction was aborted", _finding("abort"), log="kafka"),
    Sometimes("an open transaction held answers back", _held_back, log="kafka"),
)


def possible(history: History, log: str) -> Iterator[Sometimes]:
    """What the faults of a run over a kind of log make possible."""
    happened = {fault.kind for fault in history.faults}
    for sometimes in ALL:
        if sometimes.log in ("", log) and (not sometimes.needs or sometimes.needs & happened):
            yield sometimes


def unreached(history: History, log: str) -> list[Sometimes]:
    """What was possible and did not happen."""
    return [sometimes for sometimes in possible(history, log) if not sometimes.is_reached(history)]
