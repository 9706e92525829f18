"""Opens the group that a URL names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from forebay.changelog import Changelog
from forebay.errors import ConfigurationError, SettingError
from forebay.topology import Topology
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.membership import Membership
from forebay_worker.group.sqlite.membership import SqliteMembership


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
    chosen = url or (f"{changelog.url}/group.db" if changelog.url.startswith("sqlite:") else changelog.url)
    if chosen.startswith("sqlite:///"):
        path = Path("/" + unquote(chosen.removeprefix("sqlite:")).lstrip("/"))
        membership = SqliteMembership(path, topology, changelog, policy, times)
        membership.check()
        return membership
    if chosen.startswith("kafka://"):
        try:
            from forebay_worker.group.kafka.membership import KafkaMembership
        except ImportError as error:
            raise SettingError(
                f"A kafka:// group needs the package {error.name!r}: install 'forebay[kafka]'."
            ) from None
        return KafkaMembership(chosen, Leader(topology, changelog, policy), times)
    raise ConfigurationError(
        f"The group {chosen!r} is neither of the form sqlite:///PATH nor kafka://HOST:PORT,…."
    )
