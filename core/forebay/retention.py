"""Retention: what is past it, by stream time, so that whoever knows the stream so far has the same."""

from __future__ import annotations

from forebay.stored_keys import MIN_TIME_MS
from forebay.topology import StoreSpec


def oldest_kept_ms(spec: StoreSpec, stream_time_ms: int | None) -> int | None:
    """The first time in the key of the oldest entry still kept: a window's start, a session's end.

    None where all are. An entry is kept until its end is ``retention_ms`` behind stream time, the largest end.
    """
    if stream_time_ms is None or spec.retention_ms is None:
        return None
    return stream_time_ms - spec.retention_ms - (spec.window_size_ms or 0) + 1


def history_begins_ms(spec: StoreSpec, stream_time_ms: int | None) -> int | None:
    """Since when a versioned store has all that was in force; None where it has all of history.

    A version is expired once another of its key has been in force for ``history_retention_ms`` of stream time,
    the newest valid-from (KIP-889). Unlike there, none is refused for coming late, and the last one never goes,
    not even a deletion: what comes late and is older must not seem to be in force.
    """
    if stream_time_ms is None or spec.history_retention_ms is None:
        return None
    return max(MIN_TIME_MS, stream_time_ms - spec.history_retention_ms)
