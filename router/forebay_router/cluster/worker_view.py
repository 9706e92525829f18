"""One worker as a router sees it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from forebay.clock import boot_ms
from forebay.lag import UNLIMITED, Lag, Tolerance
from forebay.streams_metadata import NO_GENERATION, Generation, HostInfo
from forebay.wire.answer_schemas.status import Identity, StatusReport

_ANSWERS_TO_RECOVER = 64
_SLOW_READS_TO_SUSPECT = 3
_RECOVERED = 0.5
"""A replica that lagged is preferred again once its lag is this part of the acceptable one."""
Held = tuple[str, int]
"""A store and one of its partitions."""
_LINES = re.compile(
    rb"(?:forebay-record-lag: (\d+)\r\n)?(?:forebay-time-lag-ms: (\d+)\r\n)?(?:forebay-age-ms: (\d+)\r\n)?"
    rb"(?:forebay-position: [^\r]*\r\n)?(?:forebay-role: (\w+)\r\n)?"
)


class SlowStart:
    """How many reads a worker may have at once before others are preferred.

    After a loss it is one, a probe; each answer allows one more (TCP's slow start, in reads), and after 64 answers
    the worker counts like any other.
    """

    def __init__(self) -> None:
        self.window: int | None = None
        """None if the worker is not recovering."""

    def lose(self) -> None:
        """The worker was lost: it refused or broke a connection, or let a poll run into its time-out.

        Slow reads do not count as a loss. Under load they are common, and sparing the worker because of them would
        make everything even slower.
        """
        self.window = 1

    def answered(self) -> None:
        """The worker answered a read that was still awaited."""
        if self.window is not None:
            self.window = self.window + 1 if self.window < _ANSWERS_TO_RECOVER else None


class Report(NamedTuple):
    """The last known state of one replica, as of some time at the latest."""

    role: str
    lag: Lag
    at_boot_ms: float
    lagging: bool = False
    """Whether its record lag is beyond what the group accepts of an active; then until it is half of that, so that
    reads do not flap."""


class Restore(NamedTuple):
    """How far a bulk restore is; the time left is None while unknown."""

    records: int
    seconds_left: int | None


@dataclass
class WorkerView:
    """One worker, as shown by its status reports and its answers."""

    host: HostInfo
    process_id: str = ""
    incarnation: int = 0
    sequence: int = 0
    generation: Generation = NO_GENERATION
    """That of its newest map."""
    live: bool = False
    slow_reads: int = 0
    auth_rejected: bool = False
    seen_boot_ms: float = 0.0
    slow_start: SlowStart = field(default_factory=SlowStart)
    ceiling: Tolerance = UNLIMITED
    rack: str | None = None
    acceptable_recovery_lag: int | None = None
    num_standby_replicas: int | None = None
    replicas: dict[Held, Report] = field(default_factory=dict)
    failures: dict[Held, str] = field(default_factory=dict)
    """Why records of replicas cannot be applied."""
    notices: dict[Held, Mapping[str, str]] = field(default_factory=dict)
    """What is wrong with the logs of replicas, or with where keys are, by kind."""
    restores: dict[Held, Restore] = field(default_factory=dict)
    """The bulk restores under way."""
    _status: bytes = b""
    _status_boot_ms: float = 0.0

    @property
    def suspect(self) -> bool:
        """Whether it has been silent on several reads: it may hang."""
        return self.slow_reads >= _SLOW_READS_TO_SUSPECT

    @property
    def is_healthy(self) -> bool:
        """Whether it answers, as far as is known."""
        return self.live and not self.suspect

    @property
    def recovered(self) -> bool:
        """Whether it answers and may have as many reads at once as any other."""
        # Not by way of the properties above: every read asks.
        return self.live and self.slow_reads < _SLOW_READS_TO_SUSPECT and self.slow_start.window is None

    def on_answer(self, *, late: bool = False) -> None:
        """It answered a read, perhaps ``late``, when it was no longer awaited: it does not hang."""
        self.slow_reads = 0
        if not late:
            self.slow_start.answered()

    def is_newer(self, status: StatusReport) -> bool:
        """Whether a status is of a later moment than the last one adopted."""
        return (status.incarnation, status.sequence) > (self.incarnation, self.sequence)

    def is_later_start_of(self, identity: Identity) -> bool:
        """Whether the process was started again since it was the one of an identity."""
        return self.process_id == identity.process_id and self.incarnation > identity.incarnation

    @property
    def holds_lease(self) -> bool:
        """Whether it answers, and was active for something when it last did: its group knew it then."""
        return self.live and any(report.role != "standby" for report in self.replicas.values())

    def suspect_at_once(self) -> None:
        """It was silent on a poll, which counts like several reads."""
        self.slow_reads = max(self.slow_reads, _SLOW_READS_TO_SUSPECT)
        self.slow_start.lose()

    def take(self, body: bytes, status: StatusReport, polled_boot_ms: float) -> None:
        """Adopt a status, given both raw and parsed, and when it was asked for."""
        self.process_id = status.process_id
        self.incarnation, self.sequence = status.incarnation, status.sequence
        self.generation = Generation(status.generation.incarnation, status.generation.generation)
        self.live, self.slow_reads = True, 0
        bounds = status.ceiling
        self.ceiling = Tolerance(bounds.max_record_lag, bounds.max_time_lag_ms, bounds.max_age_ms)
        self.rack = status.rack or None
        self.acceptable_recovery_lag = status.acceptable_recovery_lag
        self.num_standby_replicas = status.num_standby_replicas
        rows = status.tasks
        self.replicas = {
            (held := (sys.intern(row.store), row.partition)): self.report(
                held, row.role, Lag(row.record_lag, row.time_lag_ms, row.age_ms), polled_boot_ms
            )
            for row in rows
        }
        self.failures = {(row.store, row.partition): row.failure for row in rows if row.failure is not UNSET}
        self.notices = {(row.store, row.partition): row.notices for row in rows if row.notices is not UNSET}
        self.restores = {
            (row.store, row.partition): Restore(
                row.restored_records, None if row.restore_seconds_left is UNSET else row.restore_seconds_left
            )
            for row in rows
            if row.restored_records is not UNSET
        }
        self._status, self._status_boot_ms = body, polled_boot_ms

    def report(self, held: Held, role: str, lag: Lag, at_boot_ms: float) -> Report:
        """A replica's report, given what was reported of it before."""
        acceptable, record_lag = self.acceptable_recovery_lag, lag.record_lag
        if acceptable is None or record_lag is None or record_lag <= acceptable * _RECOVERED:
            return Report(role, lag, at_boot_ms)
        before = self.replicas.get(held)
        lagging = record_lag > acceptable or (before is not None and before.lagging)
        return Report(role, lag, at_boot_ms, lagging)

    def rows(self) -> list[dict[str, Any]]:
        """The ``tasks`` of its last status, their lag as of now.

        They are seldom needed, and take ten times the memory when parsed.
        """
        if not self._status:
            return []
        rows = _decode_rows(self._status).tasks
        since_ms = boot_ms() - self._status_boot_ms
        for row in rows:
            row.update(Lag(row["record_lag"], row["time_lag_ms"], row["age_ms"]).aged(since_ms).document())
        return rows


class _Rows(msgspec.Struct):
    """The rows of a status with all members, those of later versions too."""

    tasks: list[dict[str, Any]]


_decode_rows = msgspec.json.Decoder(_Rows).decode


class ReportedReplica(NamedTuple):
    """Role, empty if several replicas answered, and lag."""

    role: str
    lag: Lag


def reported_in(head: bytes) -> ReportedReplica | None:
    """The contents of header lines, in the order in which they are sent; None if they contain no figures."""
    at = head.find(b"forebay-")
    found = None if at < 0 else _LINES.match(head, at)
    if found is None:
        return None
    record_lag, time_lag_ms, age_ms, role = found.groups()
    return ReportedReplica(
        "" if role is None else role.decode(), Lag(_number(record_lag), _number(time_lag_ms), _number(age_ms))
    )


def _number(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
