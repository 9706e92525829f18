"""Directories and object stores by their URLs, as ``pyarrow.fs`` opens them."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus

from forebay.backend_registry import extra_missing, scheme_of
from forebay.errors import ConfigurationError

_HADOOP_NAMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
"""The names that Hadoop gives to the same file systems."""
_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "hdfs", "viewfs", *_HADOOP_NAMES)
_SHORTEST_SECRET = 4
_CONNECT_S, _REQUEST_S, _ATTEMPTS = 3.0, 5.0, 2
"""By default one request to a server that is away takes up to two minutes."""


class FileSystemPath(NamedTuple):
    """A path in a ``pyarrow.fs`` file system. ``shown`` is its URL for messages, without credentials."""

    filesystem: Any
    path: str
    shown: str


def require_file_systems(url: str, extra: str) -> None:
    """Raise ``ExtraMissing`` without pyarrow, and ``ConfigurationError`` for what is no URL of a file system.

    Nothing is connected to.
    """
    if scheme_of(url) not in _SCHEMES or "://" not in url:
        raise ConfigurationError(
            f"{shown_url(url)} is no URL of a file system: use file://, s3://, gs:// or abfs://."
        )
    try:
        import pyarrow.fs  # noqa: F401
    except ImportError as error:
        raise extra_missing(shown_url(url), [extra], error) or error from error


def open_file_system(url: str, extra: str) -> FileSystemPath:
    """The path that a ``file:``, ``s3:``, ``gs:``, ``abfs:`` or ``hdfs:`` URL names; may wait for its server.

    Raises ``ExtraMissing``, which names the ``extra`` that has pyarrow, and ``ConfigurationError`` if pyarrow
    cannot open it.
    """
    require_file_systems(url, extra)
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    scheme = scheme_of(url)
    try:
        filesystem, path = FileSystem.from_uri(_HADOOP_NAMES.get(scheme, scheme) + url[len(scheme) :])
    except (OSError, ValueError, ArrowException) as error:
        reason = without_secrets(error, url)
        raise ConfigurationError(
            f"pyarrow cannot open {shown_url(url)}: {reason}. Check the URL and its credentials."
        ) from error
    return FileSystemPath(_impatient(filesystem), path.rstrip("/"), shown_url(url))


def shown_url(url: str) -> str:
    """A URL without what may be credentials: pyarrow takes them before the host and as parameters."""
    scheme, _, rest = url.partition("://")
    # A secret may have slashes.
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def without_secrets(error: Exception, url: str) -> str:
    """An error's text without the credentials of a URL, as it has them or decoded."""
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    user = place.rpartition("@")[0]
    text = re.sub(r"\?[^\s'\"]*", "?…", str(error).replace(rest, shown_url(url).partition("://")[2]))
    raw = {*user.split(":"), user, *(part.partition("=")[2] for part in query.partition("#")[0].split("&"))}
    for secret in sorted({*raw, *map(unquote, raw), *map(unquote_plus, raw)}, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "…")
    return text


def _impatient(filesystem: Any) -> Any:
    """The same file system, with time-outs where it can have some."""
    if filesystem.type_name != "s3":
        return filesystem
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    # What it was made with, as it is pickled: a URL cannot say how long to wait.
    options = filesystem.__reduce__()[1][0]
    limits = {"connect_timeout": _CONNECT_S, "request_timeout": _REQUEST_S}
    return S3FileSystem(
        **{**options, **limits, "retry_strategy": AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS)}
    )
