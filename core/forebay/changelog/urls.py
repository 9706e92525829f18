"""Changelog URLs."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from forebay.changelog.base import Changelog
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.errors import SettingError


def open_changelog(url: str, *, create: bool = True) -> Changelog:
    """The changelog at a URL, ``sqlite:///DIR`` or ``kafka://HOST:PORT,…``; raises ``SettingError``.

    Without ``create``, raises ``ChangelogError`` if there is none.
    """
    if url.lower().startswith("kafka://"):
        try:
            from forebay.changelog.kafka.changelog import KafkaChangelog
        except ImportError as error:
            raise SettingError(
                f"A kafka:// changelog needs the package {error.name!r}: install 'forebay[kafka]'."
            ) from None
        return KafkaChangelog(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingError(f"The changelog {url.partition('?')[0]!r} is not a URL: {error}.") from None
    if parts.scheme == "sqlite" and (parts.query or parts.fragment):
        raise SettingError(f"The changelog {url!r}: write '?' as '%3F' and '#' as '%23' in a directory's name.")
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        # A fourth slash, as in other tools' URLs, means nothing here.
        return SqliteChangelog("/" + unquote(parts.path).lstrip("/"), create=create)
    raise SettingError(
        f"The changelog {url!r} is neither of the form sqlite:///DIR (three slashes, then the path) nor "
        "kafka://HOST:PORT,HOST:PORT."
    )
