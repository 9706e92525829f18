"""How long a member that is gone keeps its place: ``standby_rebuild_delay_ms`` from its absence."""

from __future__ import annotations

from collections.abc import Mapping, Set


class Absences:
    """The members that hold something and are missing, as the leader knows them.

    Where the group's backend keeps when each member's lease ended, that counts. Else the leader counts from the
    first round in which it misses a member. A later leader begins to count anew, so a place is kept longer, not
    lost.
    """

    def __init__(self, standby_rebuild_delay_ms: float) -> None:
        self._delay_ms = standby_rebuild_delay_ms
        self._missing_since: dict[str, float] = {}

    def forget(self) -> None:
        """Begin anew: another leader led meanwhile, and a member may have been back."""
        self._missing_since.clear()

    def expected_back(self, missing: Set[str], gone_since: Mapping[str, float], now: float) -> dict[str, float]:
        """The missing members that keep their places, and until when.

        ``gone_since`` has the end of each lease that the backend remembers.
        """
        unrecorded = missing - gone_since.keys()
        self._missing_since = {name: self._missing_since.get(name, now) for name in unrecorded}
        since = {**gone_since, **self._missing_since}
        return {name: since[name] + self._delay_ms for name in missing if since[name] + self._delay_ms > now}
