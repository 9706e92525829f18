"""Retention: from which time on windows, sessions, versions and values are kept.

By stream time, so that everyone who has read the same stream agrees, but for ``ttl_ms``, which is by the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from forebay.stored_keys import MIN_TIME_MS


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long a store keeps what; durations in milliseconds, None where its kind has none."""

    window_size_ms: int | None = None
    """How long its windows last."""
    retention_ms: int | None = None
    """How long a window or session is kept after its end."""
    gap_ms: int | None = None
    """The gap after which its sessions end."""
    history_retention_ms: int | None = None
    """How long a version is kept after it was replaced."""
    ttl_ms: int | None = None
    """How long a value is served after its record's timestamp, by the clock."""


class LogRetention(NamedTuple):
    """What a log has to keep, so that a store rebuilt from it lacks nothing; in milliseconds."""

    records_ms: int | None = None
    """How long it keeps a record that no other has replaced; None for ever."""
    replaced_ms: int | None = None
    """How long it keeps a record after another has replaced it; None if not at all."""

    @property
    def longest_ms(self) -> int:
        """The longer of both, without what is kept for ever."""
        return max(self.records_ms or 0, self.replaced_ms or 0)


def oldest_kept_ms(spec: Retention, stream_time_ms: int | None) -> int | None:
    """The first time in the key of the oldest entry still kept: a window's start, a session's end.

    None if all are. An entry is kept until its end is ``retention_ms`` behind stream time, the largest end.
    """
    if stream_time_ms is None or spec.retention_ms is None:
        return None
    return stream_time_ms - spec.retention_ms - (spec.window_size_ms or 0) + 1


def history_begins_ms(spec: Retention, stream_time_ms: int | None) -> int | None:
    """The time since which a versioned store has all versions that were in force; None if it has all of history.

    A version is expired once another of its key has been in force for ``history_retention_ms`` of stream time, the
    newest valid-from (KIP-889). Unlike there, none is refused for being late, and the last one never expires, not
    even a deletion: a late, older version must not appear to be in force.
    """
    if stream_time_ms is None or spec.history_retention_ms is None:
        return None
    return max(MIN_TIME_MS, stream_time_ms - spec.history_retention_ms)


def expired_to_ms(spec: Retention, now_epoch_ms: float) -> int | None:
    """The last timestamp of records whose values have expired at a time by the clock; None if none ever do.

    A value expires in the millisecond in which it is ``ttl_ms`` old.
    """
    return None if spec.ttl_ms is None else math.floor(now_epoch_ms) - spec.ttl_ms
