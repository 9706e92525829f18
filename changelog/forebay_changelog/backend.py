"""The interface of a kind of changelog, as its package registers it."""

from __future__ import annotations

from typing import Protocol

from forebay.backend_registry import load_backend, naming_extra
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


_ROLE = "changelog"


def open_changelog(url: str, *, create: bool = True) -> Changelog:
    """The changelog at a URL, such as ``sqlite:///DIR`` or ``kafka://HOST:PORT,…``.

    Its scheme decides which installed backend opens it. Raises ``SettingError``, ``ExtraMissing`` if the
    backend's packages are not installed, and without ``create`` ``ChangelogError`` if there is none.
    """
    backend: ChangelogBackend = load_backend(CHANGELOG_ENTRY_POINTS, url, _ROLE)
    with naming_extra(CHANGELOG_ENTRY_POINTS, url, _ROLE):
        return backend.open(url, create=create)
