"""Directories and object stores by their URLs, as ``pyarrow.fs`` opens them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlsplit

from forebay.backend_registry import extra_missing
from forebay.errors import ConfigurationError

_HADOOP_NAMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
"""The names that Hadoop gives to the same file systems."""


class FileSystemPath(NamedTuple):
    """A path in a ``pyarrow.fs`` file system. ``shown`` is its URL for messages, without credentials."""

    filesystem: Any
    path: str
    shown: str


def open_location(url: str, extra: str) -> FileSystemPath:
    """The location that a ``file:``, ``s3:``, ``gs:``, ``abfs:`` or ``hdfs:`` URL names.

    Raises ``ExtraMissing``, which names the ``extra`` that has pyarrow, and ``ConfigurationError`` if pyarrow
    refuses the URL.
    """
    parts = urlsplit(url)
    # Without its query and user, where pyarrow takes credentials.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise extra_missing(shown, [extra], error) or error from error
    named = _HADOOP_NAMES.get(parts.scheme, parts.scheme)
    try:
        filesystem, path = FileSystem.from_uri(named + url[len(parts.scheme) :])
    except (OSError, ValueError) as error:
        reason = str(error).replace(url[len(parts.scheme) :], shown[len(parts.scheme) :])
        raise ConfigurationError(
            f"pyarrow cannot open {shown}: {reason}. Check the URL and its credentials."
        ) from error
    return FileSystemPath(filesystem, path.rstrip("/"), shown)
