"""Addresses at which no worker of this router's application answers, and why; logged once, not at every poll."""

from __future__ import annotations

import logging
from typing import Any

from forebay.metadata import HostInfo

log = logging.getLogger(__name__)


class Strangers:
    """The application that the router serves, and the addresses that are not its workers.

    Without an ``application_id`` of its own the router serves that of its seeds, once all of them were asked; if
    they disagree it serves none, since the choice must not depend on which of them answers first.
    """

    def __init__(self, application_id: str | None) -> None:
        self.application_id = application_id
        self._claims: dict[HostInfo, str] = {}
        self._why: dict[HostInfo, str] = {}
        self.addresses: set[HostInfo] = set()
        """Addresses where something other than a worker of this application answers; not asked."""

    @property
    def disagreement(self) -> str | None:
        """Why no application could be chosen; None if one was, or none is known yet."""
        found = sorted(set(self._claims.values()))
        if self.application_id is not None or len(found) < 2:
            return None
        return (
            f"The seeds lead to workers of {' and '.join(map(repr, found))}: name the one with --application-id."
        )

    def admit(self, address: HostInfo, application_id: str, *, all_asked: bool) -> bool:
        """Whether a worker belongs to the router's application, as far as known."""
        if self.application_id is None:
            self._claims[address] = application_id
            if self.disagreement is not None:
                self._tell(address, f"belongs to application {application_id!r}. {self.disagreement}")
                return False
            if not all_asked:
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

    def ignore(self, address: HostInfo, why: str) -> None:
        """Record an address that is not a worker of this application."""
        self._claims.pop(address, None)
        self.addresses.add(address)
        self._tell(address, why)

    def missed(self, address: HostInfo, why: str) -> None:
        """Record an address at which no worker was ever found."""
        self._claims.pop(address, None)
        self._tell(address, why)

    def forget(self, address: HostInfo) -> None:
        """A worker of the application is there now, or the address is no longer polled."""
        self._claims.pop(address, None)
        self._why.pop(address, None)
        self.addresses.discard(address)

    def documents(self) -> list[dict[str, Any]]:
        """The addresses, and why no requests go there, for ``/v1/status``."""
        return [{"address": str(address), "why": self._why[address]} for address in sorted(self._why)]

    def _tell(self, address: HostInfo, why: str) -> None:
        if self._why.get(address) != why:
            self._why[address] = why
            log.warning("%s %s", address, why)
