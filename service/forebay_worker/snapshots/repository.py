"""Snapshots in a directory or an object store: files by their digests, and a manifest for each snapshot.

``APPLICATION/STORE/PARTITION/`` has the manifests, named by the time of the snapshot so that the last name is the
newest, and ``files/``, whose names are the SHA-256 of what they hold. What several snapshots share is there once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from forebay.clock import boot_ms, epoch_ms, time_text
from forebay.errors import ConfigurationError
from forebay.file_systems import (
    FileSystemPath,
    open_file_system,
    require_file_systems,
    shown_url,
    without_secrets,
)
from forebay_worker.snapshots.taking import CopyFailed, all_or_none, require_space
from forebay_worker.state.fsync import create_file, sync_directory
from forebay_worker.tasks.restoration import CopyProgress

log = logging.getLogger(__name__)

KEPT = 2
"""The newest snapshots of a partition that stay."""
_UNNAMED_KEPT_MS = 86_400_000
"""A file that no manifest names may be of one that is being saved."""
_CLOCK_SLACK_MS = 60_000
"""A snapshot from further ahead is of a clock that was wrong."""
_UNREACHABLE_FOR_MS = 60_000.0
_PIECE_BYTES = 4 << 20
_FILES_AT_ONCE = 4


class SavedFile(Struct, frozen=True):
    """A file of a store in a snapshot."""

    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    bytes: int


class Manifest(Struct, frozen=True, tag_field="format", tag=1):
    """What a snapshot consists of."""

    created_epoch_ms: int
    position: int
    """The next offset to apply."""
    usable_until_epoch_ms: int | None
    """Afterwards its log may lack tombstones that were written since; None if it keeps all."""
    log: str | None
    """The identity of its log."""
    files: Mapping[Annotated[str, Meta(pattern=r"\A[^./][^/]*\Z")], SavedFile]

    def is_of(self, log: str | None) -> bool:
        """Whether it may be of a log, as far as both are known."""
        return None in (log, self.log) or log == self.log


class SnapshotRepository:
    """The snapshots of an application; each method waits for the file system, in any thread.

    Raises ``ConfigurationError`` if pyarrow is missing or the URL is none, and later if the file system cannot be
    opened. What that refuses is an ``OSError``.
    """

    def __init__(self, url: str, application_id: str) -> None:
        require_file_systems(url, "snapshots")
        self.url, self._whole_url, self._application_id = shown_url(url), url, application_id
        self._opened: FileSystemPath | None = None
        self._opening = threading.Lock()
        self._unreachable_until_boot_ms = 0.0

    def reason(self, error: Exception) -> str:
        """An error's text, which may contain credentials, without them."""
        return without_secrets(error, self._whole_url) or repr(type(error))

    def newest(self, store: str, partition: int, log: str | None) -> Manifest | None:
        """The newest snapshot of a partition of a log that can be read."""
        manifests = self._manifests(self._directory(store, partition))
        return next((manifest for _, manifest in manifests if manifest.is_of(log)), None)

    @property
    def _fs(self) -> Any:
        return self._place().filesystem

    def _place(self) -> FileSystemPath:
        """Opened by who first needs it: a server that is away must not delay a worker's start."""
        with self._opening:
            if self._opened is None:
                self._opened = open_file_system(self._whole_url, "snapshots")
            return self._opened

    def save(
        self,
        store: str,
        partition: int,
        manifest: Manifest,
        content: Callable[[str], Iterator[bytes]],
        pause: Callable[[int], None],
    ) -> int:
        """Save a snapshot, of which ``content(name)`` reads a file, and remove the oldest; returns bytes written.

        ``pause(bytes)`` is called before each write, and may end the whole by an exception.
        """
        directory = self._directory(store, partition)
        self._fs.create_dir(f"{directory}/files", recursive=True)
        named = _digests(one for _, one in self._manifests(directory))
        there = {file.base_name: file.size for file in self._list(f"{directory}/files")}
        written = 0
        for name, file in manifest.files.items():
            # What no manifest names may be removed at any time; and one that was interrupted is shorter.
            if file.sha256 not in named or there.get(file.sha256) != file.bytes:
                self._write(f"{directory}/files/{file.sha256}", content(name), pause)
                written += file.bytes
        name = f"{manifest.created_epoch_ms:015d}-{secrets.token_hex(4)}.json"
        document = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self._write(f"{directory}/{name}", iter([document]), pause)
        try:
            self._remove_old(directory)
        except OSError as error:
            # As where nobody may delete. What was saved is saved.
            log.warning("old snapshots at %s could not be removed: %s", self.url, self.reason(error))
        return written

    def copy(
        self, store: str, partition: int, target: Path, stopped: Callable[[], bool], progress: CopyProgress
    ) -> str | None:
        """Copy the newest snapshot that is whole, and beyond the replica's position, into a new directory.

        Returns which, for messages, None if there is none. Raises ``OSError`` if the disk refuses.
        """
        if boot_ms() < self._unreachable_until_boot_ms:
            # Others have waited for it just now.
            return None
        for name, manifest in self._readable(store, partition):
            if not manifest.is_of(progress.log):
                continue
            if manifest.position <= progress.position:
                return None
            if manifest.usable_until_epoch_ms is not None and epoch_ms() > manifest.usable_until_epoch_ms:
                log.info("%s-%d: the snapshot %s is older than tombstones in the log", store, partition, name)
                return None
            progress.leads_to = manifest.position
            try:
                self._load(self._directory(store, partition), manifest, target, stopped)
                return f"the snapshot of {time_text(manifest.created_epoch_ms)} at {self.url}"
            except CopyFailed as error:
                shutil.rmtree(target, ignore_errors=True)
                progress.leads_to = 0
                log.error("%s-%d: the snapshot %s at %s: %s", store, partition, name, self.url, error)
                if stopped():
                    return None
        return None

    def _readable(self, store: str, partition: int) -> Iterator[tuple[str, Manifest]]:
        try:
            yield from self._manifests(self._directory(store, partition))
        except (OSError, ConfigurationError) as error:
            self._unreachable_until_boot_ms = boot_ms() + _UNREACHABLE_FOR_MS
            log.error("the snapshots at %s cannot be read: %s", self.url, self.reason(error))

    def _manifests(self, directory: str) -> Iterator[tuple[str, Manifest]]:
        """Names and manifests, the newest first; those that cannot be understood are left out.

        Those of a clock that was ahead come last.
        """
        now_name = f"{int(epoch_ms()) + _CLOCK_SLACK_MS:015d}"
        for name in sorted(self._names(directory), key=lambda name: (name <= now_name, name), reverse=True):
            try:
                content = b"".join(self._read(f"{directory}/{name}"))
                yield name, msgspec.json.decode(content, type=Manifest)
            except (ValueError, FileNotFoundError) as error:
                log.warning("%s/%s is no manifest of a snapshot: %r", directory, name, error)

    def _names(self, directory: str) -> list[str]:
        return [file.base_name for file in self._list(directory) if file.base_name.endswith(".json")]

    def _load(self, directory: str, manifest: Manifest, target: Path, stopped: Callable[[], bool]) -> None:
        target.mkdir(parents=True)
        require_space(target, sum(file.bytes for file in manifest.files.values()))

        def load(name: str, file: SavedFile) -> None:
            if stopped():
                raise CopyFailed("it is not wanted any more")
            digest = hashlib.sha256()
            with open(create_file(target / name), "wb") as copy:
                for piece in self._remote(f"{directory}/files/{file.sha256}"):
                    copy.write(piece)
                    digest.update(piece)
                    if stopped():
                        raise CopyFailed("it is not wanted any more")
                copy.flush()
                os.fsync(copy.fileno())
            if digest.hexdigest() != file.sha256:
                # The next snapshot would count on it.
                with suppress(OSError):
                    self._fs.delete_file(f"{directory}/files/{file.sha256}")
                raise CopyFailed(f"{name} is not as it was saved")

        all_or_none([partial(load, *file) for file in manifest.files.items()], at_once=_FILES_AT_ONCE)
        sync_directory(target)

    def _remote(self, path: str) -> Iterator[bytes]:
        """A file's content; raises ``CopyFailed`` for what is not this machine's disk."""
        try:
            yield from self._read(path)
        except OSError as error:
            raise CopyFailed(self.reason(error)) from error

    def _remove_old(self, directory: str) -> None:
        """Remove all but the newest, and the files that only they had."""
        manifests = list(self._manifests(directory))
        # What is named by a manifest that a later version wrote is not known.
        knows_all = len(manifests) == len(self._names(directory))
        for name, _ in manifests[KEPT:]:
            self._delete(f"{directory}/{name}")
        kept = _digests(manifest for _, manifest in manifests[:KEPT])
        removed = _digests(manifest for _, manifest in manifests[KEPT:]) - kept
        until_s = (epoch_ms() - _UNNAMED_KEPT_MS) / 1000
        for file in self._list(f"{directory}/files"):
            is_left = knows_all and file.mtime is not None and file.mtime.timestamp() < until_s
            if file.base_name in removed or (file.base_name not in kept and is_left):
                self._delete(file.path)

    def _delete(self, path: str) -> None:
        # Another worker may have been faster.
        with suppress(FileNotFoundError):
            self._fs.delete_file(path)

    def _list(self, directory: str) -> list[Any]:
        from pyarrow.fs import FileSelector

        found: list[Any] = self._fs.get_file_info(FileSelector(directory, allow_not_found=True))
        return found

    def _read(self, path: str) -> Iterator[bytes]:
        with self._fs.open_input_stream(path) as file:
            while piece := bytes(file.read(_PIECE_BYTES)):
                yield piece

    def _write(self, path: str, pieces: Iterator[bytes], pause: Callable[[int], None]) -> None:
        first = next(pieces, b"")
        # Before the file is there: a pause that ends all would leave an empty one.
        pause(len(first))
        with self._fs.open_output_stream(path) as file:
            file.write(first)
            for piece in pieces:
                pause(len(piece))
                file.write(piece)

    def _directory(self, store: str, partition: int) -> str:
        return f"{self._place().path}/{self._application_id}/{store}/{partition}"


def _digests(manifests: Iterable[Manifest]) -> set[str]:
    return {file.sha256 for manifest in manifests for file in manifest.files.values()}
