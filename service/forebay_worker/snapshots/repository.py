"""Snapshots in a directory or an object store: files by their digests, and a manifest for each snapshot.

``APPLICATION/STORE/PARTITION/`` has the manifests, named by the time of the snapshot so that the last name is the
newest, and ``files/``, whose names are the SHA-256 of what they hold. What several snapshots share is there once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from forebay.clock import epoch_ms, time_text
from forebay.file_systems import open_location
from forebay_worker.snapshots.taking import CopyFailed, CopyProgress, require_space
from forebay_worker.state.fsync import create_file, sync_directory

log = logging.getLogger(__name__)

KEPT = 2
"""The newest snapshots of a partition that stay."""
_FORMAT = 1
_UNNAMED_KEPT_MS = 86_400_000
"""A file that no manifest names may be of one that is being saved."""
_PIECE_BYTES = 4 << 20
_FILES_AT_ONCE = 4


class SavedFile(NamedTuple):
    """A file of a store in a snapshot."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a snapshot consists of."""

    created_epoch_ms: int
    position: int
    """The next offset to apply."""
    usable_until_epoch_ms: int | None
    """Afterwards its log may lack tombstones that were written since; None if it keeps all."""
    files: Mapping[str, SavedFile]
    format: int = _FORMAT

    @classmethod
    def of(cls, document: bytes) -> Manifest:
        """A manifest as it was written; raises ``ValueError``, ``TypeError`` or ``KeyError``."""
        members: dict[str, Any] = json.loads(document)
        if members["format"] != _FORMAT:
            raise ValueError(f"format {members['format']}")
        files = {name: SavedFile(**file) for name, file in members["files"].items()}
        if any(name != os.path.basename(name) or name.startswith(".") for name in files):
            raise ValueError("files have names that are none")
        return cls(**{**members, "files": files})

    def document(self) -> bytes:
        """The manifest in JSON."""
        files = {name: file._asdict() for name, file in self.files.items()}
        return json.dumps({**asdict(self), "files": files}, indent=1).encode()


class SnapshotRepository:
    """The snapshots of an application; each method waits for the file system, in any thread.

    Raises ``ConfigurationError`` if pyarrow is missing or cannot open the URL. What the file system refuses later
    is an ``OSError``.
    """

    def __init__(self, url: str, application_id: str) -> None:
        self._fs, root, shown = open_location(url, "snapshots")
        self._root, self.url = f"{root}/{application_id}", shown

    def newest(self, store: str, partition: int) -> Manifest | None:
        """The newest snapshot of a partition that can be read."""
        return next((manifest for _, manifest in self._manifests(self._directory(store, partition))), None)

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
        self._write(f"{directory}/{name}", iter([manifest.document()]), pause)
        self._remove_old(directory)
        return written

    def copy(
        self, store: str, partition: int, target: Path, stopped: Callable[[], bool], progress: CopyProgress
    ) -> str | None:
        """Copy the newest snapshot that is whole, and beyond the replica's position, into a new directory.

        Returns which, for messages, None if there is none. Raises ``OSError`` if the disk refuses.
        """
        directory = self._directory(store, partition)
        for name, manifest in self._readable(directory):
            if manifest.position <= progress.position:
                return None
            if manifest.usable_until_epoch_ms is not None and epoch_ms() > manifest.usable_until_epoch_ms:
                log.info("%s-%d: the snapshot %s is older than tombstones in the log", store, partition, name)
                return None
            progress.leads_to = manifest.position
            try:
                self._load(directory, manifest, target, stopped)
                return f"the snapshot of {time_text(manifest.created_epoch_ms)} at {self.url}"
            except CopyFailed as error:
                shutil.rmtree(target, ignore_errors=True)
                progress.leads_to = 0
                log.error("%s-%d: the snapshot %s at %s: %s", store, partition, name, self.url, error)
                if stopped():
                    return None
        return None

    def _readable(self, directory: str) -> Iterator[tuple[str, Manifest]]:
        try:
            yield from self._manifests(directory)
        except OSError as error:
            log.error("the snapshots at %s cannot be read: %s", self.url, error)

    def _manifests(self, directory: str) -> Iterator[tuple[str, Manifest]]:
        """Names and manifests, the newest first; those that cannot be understood are left out."""
        names = [file.base_name for file in self._list(directory) if file.base_name.endswith(".json")]
        for name in sorted(names, reverse=True):
            try:
                yield name, Manifest.of(b"".join(self._read(f"{directory}/{name}")))
            except (ValueError, TypeError, KeyError, AttributeError, FileNotFoundError) as error:
                log.warning("%s/%s is no manifest of a snapshot: %r", directory, name, error)

    def _load(self, directory: str, manifest: Manifest, target: Path, stopped: Callable[[], bool]) -> None:
        target.mkdir(parents=True)
        require_space(target, sum(file.bytes for file in manifest.files.values()))

        def load(name: str, file: SavedFile) -> None:
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

        with ThreadPoolExecutor(_FILES_AT_ONCE, "forebay-copy") as pool:
            for done in [pool.submit(load, *file) for file in manifest.files.items()]:
                done.result()
        sync_directory(target)

    def _remote(self, path: str) -> Iterator[bytes]:
        """A file's content; raises ``CopyFailed`` for what is not this machine's disk."""
        try:
            yield from self._read(path)
        except OSError as error:
            raise CopyFailed(str(error)) from error

    def _remove_old(self, directory: str) -> None:
        """Remove all but the newest, and the files that only they had."""
        manifests = list(self._manifests(directory))
        for name, _ in manifests[KEPT:]:
            self._fs.delete_file(f"{directory}/{name}")
        kept = _digests(manifest for _, manifest in manifests[:KEPT])
        removed = _digests(manifest for _, manifest in manifests[KEPT:]) - kept
        until_s = (epoch_ms() - _UNNAMED_KEPT_MS) / 1000
        for file in self._list(f"{directory}/files"):
            is_left = file.mtime is not None and file.mtime.timestamp() < until_s
            if file.base_name in removed or (file.base_name not in kept and is_left):
                self._fs.delete_file(file.path)

    def _list(self, directory: str) -> list[Any]:
        from pyarrow.fs import FileSelector

        found: list[Any] = self._fs.get_file_info(FileSelector(directory, allow_not_found=True))
        return found

    def _read(self, path: str) -> Iterator[bytes]:
        with self._fs.open_input_stream(path) as file:
            while piece := bytes(file.read(_PIECE_BYTES)):
                yield piece

    def _write(self, path: str, pieces: Iterator[bytes], pause: Callable[[int], None]) -> None:
        with self._fs.open_output_stream(path) as file:
            for piece in pieces:
                pause(len(piece))
                file.write(piece)

    def _directory(self, store: str, partition: int) -> str:
        return f"{self._root}/{store}/{partition}"


def _digests(manifests: Iterable[Manifest]) -> set[str]:
    return {file.sha256 for manifest in manifests for file in manifest.files.values()}
