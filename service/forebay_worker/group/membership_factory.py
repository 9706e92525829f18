"""Opens the group that a URL names."""

from __future__ import annotations

from typing import Protocol

from forebay.backend_registry import load_backend, naming_extra
from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.membership import Membership

MEMBERSHIP_ENTRY_POINTS = "forebay.memberships"
"""The entry points of backends. Each is named after the scheme of its URLs."""

_ROLE = "group"


class MembershipBackend(Protocol):
    """Opens the groups of one scheme."""

    form: str
    """How its URLs look, such as ``sqlite:///FILE``."""

    def group_url(self, changelog: str) -> str:
        """The group of workers that are given only the URL of a changelog of the same scheme."""
        ...

    def open(
        self, url: str, topology: Topology, changelog: Changelog, policy: AssignmentPolicy, times: GroupTimeouts
    ) -> Membership:
        """The membership at a URL; raises ``ConfigurationError``."""
        ...


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
    chosen = url or _backend(changelog.url).group_url(changelog.url)
    backend = _backend(chosen)
    with naming_extra(MEMBERSHIP_ENTRY_POINTS, chosen, _ROLE):
        return backend.open(chosen, topology, changelog, policy, times)


def _backend(url: str) -> MembershipBackend:
    backend: MembershipBackend = load_backend(MEMBERSHIP_ENTRY_POINTS, url, _ROLE)
    return backend
