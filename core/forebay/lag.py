"""Lag: how far an answer may be behind the stream, never understated.

Times here are milliseconds on the boot-time clock (``forebay.clock.boot_ms``) unless a name contains ``epoch``:
elapsed time must neither depend on a wall clock that can be stepped, nor stop while the machine sleeps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

END_OFFSET_MAX_AGE_MS = 5_000
"""An end offset older than this proves no bound on record lag."""
_RING_LIMIT = 64


class Lag(NamedTuple):
    """The three figures of every answer; None where unknown.

    ``record_lag`` counts offsets, ``time_lag_ms`` and ``age_ms`` are milliseconds.
    """

    record_lag: int | None
    time_lag_ms: int | None
    age_ms: int | None

    def aged(self, elapsed_ms: float) -> Lag:
        """The lag of the same content this much later: times grow, and are rounded up."""
        later = math.ceil(elapsed_ms)
        return Lag(
            self.record_lag,
            None if self.time_lag_ms is None else self.time_lag_ms + later,
            None if self.age_ms is None else self.age_ms + later,
        )

    def document(self) -> dict[str, int | None]:
        """The figures as JSON values."""
        return self._asdict()


UNKNOWN_LAG = Lag(None, None, None)


def worst_lag(lags: list[Lag]) -> Lag:
    """Figure by figure the largest; unknown if any is."""
    columns = zip(*lags, strict=True)
    return Lag(*[None if None in figures else max(figures) for figures in columns]) if lags else UNKNOWN_LAG


_UNKNOWN = {
    "record_lag": "the end of its log is not known now",
    "time_lag_ms": "it has not caught up with its log yet",
    "age_ms": "its writers have sent no heartbeats that state it",
}
"""Why a figure is unknown."""


class Unmet(NamedTuple):
    """A bound that a figure of a lag is not proven to be within; the figure is None where unknown."""

    parameter: str
    bound: int
    name: str
    figure: int | None

    def __str__(self) -> str:
        known = f"unknown, since {_UNKNOWN[self.name]}" if self.figure is None else self.figure
        return f"{self.parameter}={self.bound}: its {self.name} is {known}"


class Tolerance(NamedTuple):
    """What lag a read accepts: all bounds given must hold, None is unlimited."""

    max_record_lag: int | None = None
    max_time_lag_ms: int | None = None
    max_age_ms: int | None = None

    def met_by(self, lag: Lag) -> bool:
        """Whether a lag is proven to be within every bound: an unknown figure meets none."""
        return all(
            bound is None or (figure is not None and figure <= bound)
            for bound, figure in zip(self, lag, strict=True)
        )

    def unmet_by(self, lag: Lag) -> list[Unmet]:
        """The bounds that a lag is not proven to be within."""
        figures = zip(self._asdict().items(), lag._asdict().items(), strict=True)
        return [
            Unmet(parameter, bound, name, figure)
            for (parameter, bound), (name, figure) in figures
            if bound is not None and (figure is None or figure > bound)
        ]

    def held_to(self, ceiling: Tolerance) -> Tolerance:
        """Bound by bound the stricter of the two."""
        if ceiling == UNLIMITED:
            return self
        pairs = zip(self, ceiling, strict=True)
        return Tolerance(*(min((bound for bound in pair if bound is not None), default=None) for pair in pairs))


UNLIMITED = Tolerance()


class EndOffset(NamedTuple):
    """One observation of a log's end, with the time at which the request for it was sent."""

    offset: int
    """The end for read-committed readers: on Kafka the last stable offset, below any open transaction."""
    sent_boot_ms: float
    high_watermark: int | None = None
    """The end of everything that was written, in open transactions too; None if that is ``offset``."""
    epoch: int | None = None
    """That of the log's last record, or a later one; None if the log has none."""

    @property
    def written_to(self) -> int:
        """The offset after the newest record, whether or not it can be read yet."""
        return self.offset if self.high_watermark is None else max(self.offset, self.high_watermark)

    def at_least(self, offset: int) -> EndOffset:
        """The same observation where the log is known to reach this offset."""
        if self.high_watermark is None or self.high_watermark <= offset:
            return EndOffset(max(self.offset, offset), self.sent_boot_ms, epoch=self.epoch)
        return self._replace(offset=max(self.offset, offset))


@dataclass
class EndOffsets:
    """The recent observations of one partition's end: a bounded ring.

    Thinning it out can only increase a time lag, so memory is bounded and the figure never understated.
    """

    newest: EndOffset | None = None
    open_since_boot_ms: float | None = None
    """Since when at least a transaction is open at the end; None if none is."""
    _ring: list[EndOffset] = field(default_factory=list)

    def observe(self, observation: EndOffset) -> None:
        """Add an observation; one sent before the newest is ignored."""
        newest = self.newest
        if newest is not None and observation.sent_boot_ms < newest.sent_boot_ms:
            return
        if observation.written_to <= observation.offset:
            self.open_since_boot_ms = None
        elif self.open_since_boot_ms is None or newest is None or newest.offset != observation.offset:
            self.open_since_boot_ms = observation.sent_boot_ms
        self.newest = observation
        ring = self._ring
        if ring and ring[-1].offset == observation.offset and ring[-1].written_to == observation.written_to:
            ring[-1] = observation
            return
        ring.append(observation)
        if len(ring) > _RING_LIMIT:
            del ring[1:-1:2]

    def last_caught_up(self, consistent_position: int) -> float | None:
        """Send time of the newest observation of which everything written is below a position.

        What an open transaction holds was written too: so the time lag grows to its age. None if no observation is
        that low. Observations below the one found are dropped.
        """
        ring = self._ring
        found = -1
        for i in range(len(ring) - 1, -1, -1):
            if ring[i].written_to <= consistent_position:
                found = i
                break
        if found < 0:
            return None
        del ring[:found]
        return ring[0].sent_boot_ms

    def end_reached(self, consistent_position: int) -> float | None:
        """Send time of the newest observation whose end offset is at or below a position, None if none is.

        All that could be read then is applied, whatever a transaction still holds back.
        """
        for observation in reversed(self._ring):
            if observation.offset <= consistent_position:
                return observation.sent_boot_ms
        return None

    def clear(self) -> None:
        """Forget everything, for example when the log was replaced."""
        self.newest = self.open_since_boot_ms = None
        self._ring.clear()


class Progress(NamedTuple):
    """How far one replica of one partition is: replaced as a whole by its one writer, read by any thread.

    ``applying_to`` is published before a write and ``position`` after it, so that a token made from the former,
    read after a value, is an upper bound for the position of that value.
    """

    position: int = 0
    """Next offset to apply."""
    applying_to: int = 0
    """The position once the write in progress is done."""
    consistent_position: int | None = None
    """The last position that was a point of the log's history; None if there never was one (cold)."""
    beginning: int = 0
    """Where the log begins; a cold replica counts its lag from here."""
    end_offset: int | None = None
    """The newest end observed, of what read-committed readers get; None before the first."""
    end_sent_boot_ms: float = 0.0
    """When the request that observed it was sent."""
    last_caught_up_boot_ms: float | None = None
    """All records that were in the log at this time are applied, of open transactions too; None if unknown."""
    as_of_boot_ms: float | None = None
    """The source's state at this time is in the answer, according to the oldest writer's heartbeat; None without
    any."""
    high_watermark: int | None = None
    """The newest end observed of everything that was written; None before the first."""
    end_reached_boot_ms: float | None = None
    """All records that could be read at this time are applied; None if unknown."""

    @property
    def open_transaction_records(self) -> int | None:
        """How many offsets lie between the end and the high watermark: what open transactions hold back."""
        if self.end_offset is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.end_offset)

    def observed(self, ends: EndOffsets) -> Progress:
        """The same progress after a new observation of the log's end."""
        newest, consistent = ends.newest, self.consistent_position
        if newest is None:
            return self
        last_caught_up, end_reached = self.last_caught_up_boot_ms, self.end_reached_boot_ms
        if consistent is not None:
            reached, proven = ends.end_reached(consistent), ends.last_caught_up(consistent)
            end_reached = end_reached if reached is None else reached
            last_caught_up = last_caught_up if proven is None else proven
        # Not by ``_replace``, which takes twice as long: each poll of a log has some.
        return Progress(
            position=self.position,
            applying_to=self.applying_to,
            consistent_position=consistent,
            beginning=self.beginning,
            end_offset=newest.offset,
            end_sent_boot_ms=newest.sent_boot_ms,
            last_caught_up_boot_ms=last_caught_up,
            as_of_boot_ms=self.as_of_boot_ms,
            high_watermark=newest.written_to,
            end_reached_boot_ms=end_reached,
        )


EMPTY_PROGRESS = Progress()


def lag_of(progress: Progress, now_boot_ms: float) -> Lag:
    """The lag of an answer given now from this progress."""
    _, _, known_to, beginning, end, _, last_caught_up, as_of, _, _ = progress
    record_lag = None if end is None else max(0, end - (beginning if known_to is None else known_to))
    return Lag(record_lag, _elapsed_ms(now_boot_ms, last_caught_up), _elapsed_ms(now_boot_ms, as_of))


def provable(lag: Lag, progress: Progress, now_boot_ms: float) -> Lag:
    """The lag as it may be checked against a bound: no record lag from an old observation of the end."""
    if now_boot_ms - progress.end_sent_boot_ms > END_OFFSET_MAX_AGE_MS:
        return lag._replace(record_lag=None)
    return lag


def _elapsed_ms(now_boot_ms: float, since_boot_ms: float | None) -> int | None:
    if since_boot_ms is None or since_boot_ms > now_boot_ms:
        return None
    return math.ceil(now_boot_ms - since_boot_ms)
