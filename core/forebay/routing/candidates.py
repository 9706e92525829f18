"""Which replicas of a partition to ask, best first. A pure function."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from forebay.lag import UNKNOWN_LAG, UNLIMITED, Lag, Tolerance
from forebay.streams_metadata import HostInfo
from forebay.wire.parameters import Prefer

_Host = TypeVar("_Host")


class Holder(NamedTuple):
    """One replica as known to a router.

    ``lag`` is the last one reported, unknown once the report is too old. ``load`` is how many requests are in
    flight there, and ``window`` how many there should be at most while the worker recovers, None if it does not.
    ``ceiling`` is the worker's bound for every read. ``near`` tells that its rack is the reader's,
    ``own_host`` that it is on the reader's machine, ``lagging`` that a fresh report shows it beyond the group's
    ``acceptable_recovery_lag``.
    """

    host: HostInfo
    role: str
    lag: Lag = UNKNOWN_LAG
    live: bool = True
    suspect: bool = False
    load: int = 0
    window: int | None = None
    ceiling: Tolerance = UNLIMITED
    near: bool = False
    lagging: bool = False
    own_host: bool = False


class _Rank(IntEnum):
    ACTIVE = 0
    WITHIN_TOLERANCE = 1
    LAGGING = 2
    UNKNOWN_LAG = 3
    RECOVERING = 4
    TOO_FAR_BEHIND = 5
    SUSPECT = 6
    DEAD = 7


def candidates(
    holders: Iterable[Holder],
    tolerance: Tolerance,
    prefer: Prefer = "active",
    choose: random.Random | None = None,
) -> tuple[HostInfo, ...]:
    """Every holder's host, best first; none is left out, since the router's information is only a hint.

    The active comes first; then restoring actives and standbys by lag; then those that lag beyond what is
    acceptable, the active first among them; then those of unknown lag; then recovering ones at the limit of their
    window; then those believed too far behind, silent or dead, as a last resort before refusing. ``prefer="any"``
    instead spreads reads over every replica within tolerance, or those of the reader's machine or rack if there
    are any (the idea of KIP-392), by two random choices and the lesser load.
    """
    ranked = sorted(holders, key=lambda holder: _order(holder, tolerance))
    order = [holder.host for holder in ranked]
    if prefer == "any" and choose is not None:
        good = equally_good(ranked, tolerance)
        if good:
            load = {holder.host: holder.load for holder in ranked}
            first = less_loaded(good, load.__getitem__, choose)
            order.remove(first)
            order.insert(0, first)
    return tuple(order)


def equally_good(holders: Iterable[Holder], tolerance: Tolerance) -> tuple[HostInfo, ...]:
    """The hosts to choose among for a read with ``prefer="any"``: healthy, within its tolerance, and on the
    reader's machine if any such is, else near if any such is."""
    good = [holder for holder in holders if _rank(holder, tolerance) <= _Rank.LAGGING]
    near = [holder for holder in good if holder.own_host] or [holder for holder in good if holder.near]
    return tuple(holder.host for holder in near or good)


def less_loaded(hosts: Sequence[_Host], load: Callable[[_Host], int], choose: random.Random) -> _Host:
    """Of two hosts chosen at random, the one with less load (Mitzenmacher's power of two choices)."""
    if len(hosts) == 1:
        return hosts[0]
    return min(choose.sample(hosts, 2), key=load)


def _order(holder: Holder, tolerance: Tolerance) -> tuple[int, bool, float, float, HostInfo]:
    record_lag, time_lag_ms, _ = holder.lag
    return (
        _rank(holder, tolerance),
        holder.role != "active",
        float("inf") if record_lag is None else record_lag,
        float("inf") if time_lag_ms is None else time_lag_ms,
        holder.host,
    )


def _rank(holder: Holder, tolerance: Tolerance) -> _Rank:
    if not holder.live:
        return _Rank.DEAD
    if holder.suspect:
        return _Rank.SUSPECT
    tolerance = tolerance.held_to(holder.ceiling)
    known = tolerance == UNLIMITED or all(
        figure is not None or bound is None for figure, bound in zip(holder.lag, tolerance, strict=True)
    )
    if known and not tolerance.met_by(holder.lag):
        return _Rank.TOO_FAR_BEHIND
    if holder.window is not None and holder.load >= holder.window:
        return _Rank.RECOVERING
    if known and holder.lagging:
        return _Rank.LAGGING
    if holder.role == "active" and known:
        return _Rank.ACTIVE
    if not known or holder.lag.record_lag is None:
        return _Rank.UNKNOWN_LAG
    return _Rank.WITHIN_TOLERANCE
