"""The interface of a kind of changelog, as its package registers it."""

from __future__ import annotations

from typing import Protocol

from forebay_changelog.base import Changelog

CHANGELOG_ENTRY_POINTS = "forebay.changelogs"
"""The entry points of backends. Each is named after the scheme of its URLs."""


class ChangelogBackend(Protocol):
    """Opens the changelogs of one scheme.

    A package that registers one here also registers its worker group in ``forebay.memberships``, and the way in
    which Spark writes it in ``forebay.destinations``, under the same name. Importing the backend needs no client
    of the log: only opening one may.
    """

    form: str
    """How its URLs look, such as ``sqlite:///DIR``."""

    def open(self, url: str, *, create: bool) -> Changelog:
        """The changelog at a URL; raises ``SettingError``, and without ``create`` ``ChangelogError`` if there is
        none."""
        ...
