"""Changelog URLs."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from forebay.changelog.base import Changelog
from forebay.changelog.sqlite import SqliteChangelog
from forebay.errors import SettingError


def open_changelog(url: str) -> Changelog:
    """The changelog at a URL, ``sqlite:///DIR``; raises ``SettingError`` for any other form."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        return SqliteChangelog(unquote(parts.path))
    raise SettingError(f"The changelog {url!r} is not of the form sqlite:///DIR (three slashes, then the path).")
