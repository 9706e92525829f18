"""Where a checkpoint's files are: a local directory, or any file system that pyarrow opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from forebay.errors import ConfigurationError
from forebay.file_systems import open_file_system
from forebay_tap.spark_checkpoint.errors import CheckpointError, CheckpointUnreachable

T = TypeVar("T")


@dataclass(frozen=True)
class FileStatus:
    """A file's size, and when it was last written, in epoch milliseconds (None if the file system keeps none)."""

    size_bytes: int
    modified_ms: int | None


class LocalFiles:
    """The files of a local directory, by paths that are relative to it and separated by ``/``.

    A missing file raises ``FileNotFoundError``, any other failure ``CheckpointUnreachable``. A missing directory
    has no names in it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        return str(self._root)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(item.name for item in _reachable((self._root / directory).iterdir))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        return _reachable((self._root / path).read_bytes)

    def exists(self, path: str) -> bool:
        return _reachable((self._root / path).is_file)

    def stat(self, path: str) -> FileStatus:
        status = _reachable((self._root / path).stat)
        return FileStatus(status.st_size, status.st_mtime_ns // 1_000_000)


class ArrowFiles:
    """The files of a ``pyarrow.fs`` file system, as ``LocalFiles``: S3, GCS, Azure, HDFS, or the local one."""

    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self._filesystem, self._root, self._url = filesystem, root, url

    @property
    def url(self) -> str:
        return self._url

    def list(self, directory: str) -> list[str]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path(directory), allow_not_found=True)
        return sorted(item.base_name for item in _reachable(lambda: self._filesystem.get_file_info(selector)))

    def read(self, path: str) -> bytes:
        def content() -> bytes:
            with self._filesystem.open_input_file(self._path(path)) as file:
                return bytes(file.read())

        return _reachable(content)

    def exists(self, path: str) -> bool:
        try:
            # Why: asked for its type, pyarrow also lists what is below a missing path, a dear request in S3.
            _reachable(lambda: self._filesystem.open_input_file(self._path(path)).close())
        except FileNotFoundError:
            return False
        return True

    def stat(self, path: str) -> FileStatus:
        from pyarrow.fs import FileType

        [information] = _reachable(lambda: self._filesystem.get_file_info([self._path(path)]))
        if information.type == FileType.NotFound:
            raise FileNotFoundError(self._path(path))
        nanoseconds = information.mtime_ns
        return FileStatus(information.size or 0, None if nanoseconds is None else nanoseconds // 1_000_000)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


CheckpointFiles = LocalFiles | ArrowFiles


def open_files(url: str) -> CheckpointFiles:
    """The files at a path or a ``file:``, ``s3:``, ``gs:``, ``abfs:`` or ``hdfs:`` URL.

    Raises ``CheckpointError`` if pyarrow, which all but local files need, is missing or refuses the URL.
    """
    parts = urlsplit(url)
    if not parts.scheme:
        return LocalFiles(Path(url))
    if parts.scheme == "file":
        return LocalFiles(Path(unquote(parts.path)))
    try:
        location = open_file_system(url, "tap")
    except ConfigurationError as error:
        raise CheckpointError(str(error)) from error
    return ArrowFiles(*location)


def _reachable(call: Callable[[], T]) -> T:
    try:
        return call()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        message = f"The checkpoint's file system failed: {error}."
        raise CheckpointUnreachable(f"{message} Check that it is up, and that this user may read it.") from error
