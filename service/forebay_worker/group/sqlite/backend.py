"""The embedded group, as ``sqlite://`` URLs name it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from forebay.errors import SettingError
from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.group.assignor import AssignmentPolicy
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.membership import Membership, MembershipBackend
from forebay_worker.group.sqlite.membership import SqliteMembership


class SqliteGroups:
    """The interface is ``MembershipBackend``."""

    form = "sqlite:///FILE"

    def group_url(self, changelog: str) -> str:
        """A file beside the logs."""
        return f"{changelog}/group.db"

    def open(
        self, url: str, topology: Topology, changelog: Changelog, policy: AssignmentPolicy, times: GroupTimeouts
    ) -> Membership:
        """The membership in a file; see ``MembershipBackend``."""
        path = url.partition(":")[2]
        if not path.startswith("///"):
            raise SettingError(f"The group {url!r} is not of the form {self.form} (three slashes, then the path).")
        membership = SqliteMembership(Path("/" + unquote(path).lstrip("/")), topology, changelog, policy, times)
        membership.check()
        return membership


BACKEND: MembershipBackend = SqliteGroups()
