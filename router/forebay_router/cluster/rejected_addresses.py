"""Addresses at which no worker of this router's application answers, and why; logged once, not at every poll."""

from __future__ import annotations

import logging

from forebay.streams_metadata import HostInfo
from forebay.wire.answer_schemas.status import RejectedAddress

log = logging.getLogger(__name__)


class RejectedAddresses:
    """The application that the router serves, and the addresses that are not its workers.

    Without an ``application_id`` of its own the router serves that of its seeds, once all of them were asked; if
    they disagree it serves none, since the choice must not depend on which of them answers first.
    """

    def __init__(self, application_id: str | None) -> None:
        self.application_id = application_id
        self._application_ids: dict[HostInfo, str] = {}
        self._reasons: dict[HostInfo, str] = {}
        self.addresses: set[HostInfo] = set()
        """Addresses where something other than a worker of this application answers; not asked."""

    @property
    def disagreement(self) -> str | None:
        """Why no application could be chosen; None if one was, or none is known yet."""
        found = sorted(set(self._application_ids.values()))
        if self.application_id is not None or len(found) < 2:
            return None
        return (
            f"The seeds lead to workers of {' and '.join(map(repr, found))}: name the one with --application-id."
        )

    def admit(self, address: HostInfo, application_id: str, *, all_seeds_polled: bool) -> bool:
        """Whether a worker belongs to the router's application, as far as known."""
        if self.application_id is None:
            self._application_ids[address] = application_id
            if self.disagreement is not None:
                self._log_once(address, f"belongs to application {application_id!r}. {self.disagreement}")
                return False
            if not all_seeds_polled:
                return False
            self.application_id = application_id
        if application_id == self.application_id:
            self.forget(address)
            return True
        self.ignore(
            address,
            f"belongs to application {application_id!r}, this router serves {self.application_id!r}: "
            "it is ignored",
        )
        return False

    def ignore(self, address: HostInfo, reason: str) -> None:
        """Record an address that is not a worker of this application."""
        self._application_ids.pop(address, None)
        self.addresses.add(address)
        self._log_once(address, reason)

    def not_found(self, address: HostInfo, reason: str) -> None:
        """Record an address at which no worker was ever found."""
        self._application_ids.pop(address, None)
        self._log_once(address, reason)

    def forget(self, address: HostInfo) -> None:
        """A worker of the application is there now, or the address is no longer polled."""
        self._application_ids.pop(address, None)
        self._reasons.pop(address, None)
        self.addresses.discard(address)

    def listed(self) -> list[RejectedAddress]:
        """The addresses, and why no requests go there."""
        return [RejectedAddress(str(address), self._reasons[address]) for address in sorted(self._reasons)]

    def _log_once(self, address: HostInfo, reason: str) -> None:
        if self._reasons.get(address) != reason:
            self._reasons[address] = reason
            log.warning("%s %s", address, reason)
