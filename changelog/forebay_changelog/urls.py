"""Changelog URLs."""

from __future__ import annotations

from forebay.backend_registry import load_backend, naming_extra
from forebay_changelog.backend import CHANGELOG_ENTRY_POINTS, ChangelogBackend
from forebay_changelog.base import Changelog

_ROLE = "changelog"


def open_changelog(url: str, *, create: bool = True) -> Changelog:
    """The changelog at a URL, such as ``sqlite:///DIR`` or ``kafka://HOST:PORT,…``.

    Its scheme decides which installed backend opens it. Raises ``SettingError``, ``ExtraMissing`` if the
    backend's packages are not installed, and without ``create`` ``ChangelogError`` if there is none.
    """
    backend: ChangelogBackend = load_backend(CHANGELOG_ENTRY_POINTS, url, _ROLE)
    with naming_extra(CHANGELOG_ENTRY_POINTS, url, _ROLE):
        return backend.open(url, create=create)
