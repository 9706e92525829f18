"""Which writers of a store have stopped: those whose heartbeats stay away. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.lag import Lag
from forebay.store_spec import StoreSpec

_ACCEPTABLE_AGE_MS = 120_000
"""Unless the store says itself which age is acceptable."""
_FOLLOWING_MS = 30_000.0
"""A replica that is further behind its log reveals nothing about who writes to it."""


def acceptable_age_ms(spec: StoreSpec) -> int:
    """How old what a store has of its source may be before something is wrong with the source or its writer."""
    return _ACCEPTABLE_AGE_MS if spec.max_age_ms is None else max(_ACCEPTABLE_AGE_MS, spec.max_age_ms)


def follows(lag: Lag) -> bool:
    """Whether a replica with this lag knows what is new in its log."""
    return lag.time_lag_ms is not None and lag.time_lag_ms <= _FOLLOWING_MS


def silent_writers(
    spec: StoreSpec, beat_epoch_ms: Mapping[str, int], lag: Lag, now_epoch_ms: float
) -> dict[str, int]:
    """The writers whose newest heartbeat is older than acceptable, and when it was appended (epoch milliseconds).

    ``beat_epoch_ms`` is when it was, by writer, as a replica with this ``lag`` knows it. A sink and a tap append
    one each ten seconds at the latest, but a sink none while a batch is under way.
    """
    if not follows(lag):
        return {}
    oldest_ms = now_epoch_ms - acceptable_age_ms(spec)
    return {writer: since_ms for writer, since_ms in sorted(beat_epoch_ms.items()) if since_ms < oldest_ms}
