"""Opens changelogs of every kind that is installed."""

from __future__ import annotations

from forebay.backend_registry import load_backend
from forebay_changelog.base import Changelog

CHANGELOG_ENTRY_POINTS = "forebay.changelogs"
"""The entry points of functions ``(url: str, *, create: bool) -> Changelog``. Each is named after the scheme of
its URLs, and raises as ``open_changelog`` does.

A package that registers one here also registers its worker group in ``forebay.memberships``, and the way in which
Spark writes it in ``forebay.destinations``, under the same name.
"""


def open_changelog(url: str, *, create: bool = True) -> Changelog:
    """The changelog at a URL, such as ``sqlite:///DIR`` or ``kafka://HOST:PORT,…``.

    Its scheme decides which installed backend opens it. Raises ``SettingError``, ``ExtraMissing`` if the
    backend's packages are not installed, and without ``create`` ``ChangelogError`` if there is none.
    """
    changelog: Changelog = load_backend(CHANGELOG_ENTRY_POINTS, url, "changelog")(url, create=create)
    return changelog
