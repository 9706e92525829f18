"""Membership of the worker group, whatever its backend."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from forebay.backend_registry import load_backend
from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.group_member import GroupMember
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo


class Membership(ABC):
    """A worker's place in its group: a thread that carries messages between the group and a ``GroupMember``.

    A member judges its role by comparing the clock with ``lease_until_boot_ms`` at each answer: past it, others
    may have taken over.

    A backend registers its class of it under the scheme of its URLs.
    """

    refusal: str | None = None
    """Why it cannot take part in the group, and the remedy; None while it can."""

    def __init__(self, member: GroupMember) -> None:
        self.member = member
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    @abstractmethod
    def group_url(cls, changelog: str) -> str:
        """The group of workers that are given only the URL of a changelog of the same scheme."""

    @classmethod
    @abstractmethod
    def open(cls, url: str, leader: Leader, times: GroupTimeouts) -> Membership:
        """The membership at a URL; raises ``ConfigurationError``."""

    @property
    def lease_until_boot_ms(self) -> float:
        """Until when it may be active."""
        return self.member.lease_until_boot_ms

    @property
    def state(self) -> str:
        """``joining``, ``member``, or ``other-topology`` (the leader's topology is another)."""
        return self.member.state

    def start(
        self,
        subscription: Callable[[], SubscriptionInfo],
        on_assignment: Callable[[AssignmentInfo], None],
    ) -> None:
        """Join, and stay a member in a thread; raises ``ConfigurationError`` if another one cannot be
        distinguished from this.

        ``subscription()`` returns the message to the leader; ``on_assignment(info)`` is called with every newer
        generation, in that thread.
        """
        self._subscription = subscription
        self._on_assignment = on_assignment
        self._check_address()
        self._thread = threading.Thread(target=self._run, name="forebay-group", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Leave at once, rather than by letting the lease run out; the actives move at once."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self.member.end_lease()

    @abstractmethod
    def _check_address(self) -> None:
        """Compare what this worker advertises with the group; raises ``ConfigurationError``."""

    @abstractmethod
    def _run(self) -> None:
        """Take part until ``_stopping`` is set."""


MEMBERSHIP_ENTRY_POINTS = "forebay.memberships"
"""The entry points of memberships. Each is named after the scheme of its URLs."""


def open_membership(
    url: str | None,
    topology: Topology,
    changelog: Changelog,
    policy: AssignmentPolicy,
    times: GroupTimeouts,
) -> Membership:
    """The membership at a group URL, by default in the changelog's own kind of group.

    Raises ``ConfigurationError``.
    """
    chosen = url or _registered(changelog.url).group_url(changelog.url)
    return _registered(chosen).open(chosen, Leader(topology, changelog, policy), times)


def _registered(url: str) -> type[Membership]:
    registered: type[Membership] = load_backend(MEMBERSHIP_ENTRY_POINTS, url, "group")
    return registered
