"""The embedded changelog, as ``sqlite://`` URLs name it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from forebay.errors import SettingError
from forebay_changelog.backend import ChangelogBackend
from forebay_changelog.base import Changelog
from forebay_changelog.sqlite.changelog import SqliteChangelog


class SqliteBackend:
    """The interface is ``ChangelogBackend``."""

    form = "sqlite:///DIR"

    def open(self, url: str, *, create: bool) -> Changelog:
        """The changelog in a directory; see ``ChangelogBackend``."""
        return SqliteChangelog(self._directory(url), create=create)

    def _directory(self, url: str) -> Path:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise SettingError(f"The changelog {url.partition('?')[0]!r} is not a URL: {error}.") from None
        if parts.query or parts.fragment:
            raise SettingError(
                f"The changelog {url!r}: write '?' as '%3F' and '#' as '%23' in a directory's name."
            )
        if parts.netloc or len(parts.path) < 2:
            raise SettingError(
                f"The changelog {url!r} is not of the form {self.form} (three slashes, then the path)."
            )
        # A fourth slash, as in other tools' URLs, means nothing here.
        return Path("/" + unquote(parts.path).lstrip("/"))


BACKEND: ChangelogBackend = SqliteBackend()
