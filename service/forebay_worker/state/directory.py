"""The state directory: its lock, the process's stable id, and where each store lives."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from forebay.errors import AccessDenied, ConfigurationError, StateDirectoryLocked
from forebay.file_access import denial, read_regular
from forebay.task_ids import TaskId
from forebay_worker.state import layout
from forebay_worker.state.fsync import copy_durably, sync_directory, write_durably
from forebay_worker.state.inspection import IDENTITY_NAME

log = logging.getLogger(__name__)

_PROCESS = "process.json"
_DELETING = ".deleting-"
_HALF_DELETED = ".half-deleted"
"""A file in a directory that is no store any more, whatever is left of it."""


class StateDirectory:
    """``<state_dir>/<application_id>/``, locked for the life of the process that opened it.

    Raises ``StateDirectoryLocked`` if another process has it, ``ConfigurationError`` if it cannot be written or
    contains something other than files and directories, such as a symbolic link.
    """

    def __init__(self, state_dir: Path, application_id: str) -> None:
        self.path = state_dir.absolute() / application_id
        try:
            if self.path.is_symlink():
                raise _linked(self.path)
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not through a link: what it names would be truncated.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(self.path / ".lock", flags, 0o600)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._lock, 64, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise StateDirectoryLocked(
                f"The state directory {self.path} is in use by process {owner}. Stop it first; each worker "
                "needs a --state-dir of its own."
            ) from None
        try:
            _refuse_others(self.path)
        except BaseException:
            os.close(self._lock)
            raise
        # Only informs a process that is refused; a full disk must not prevent serving what is on it.
        with contextlib.suppress(OSError):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        try:
            self._finish_deletions()
            self.process_id = self._process_id()
        except OSError as error:
            os.close(self._lock)
            raise _unwritable(self.path, error) from None

    def close(self) -> None:
        """Release the directory for another process."""
        os.close(self._lock)

    def store_path(self, task: TaskId, store: str) -> Path:
        """Where a task keeps its partition of a store."""
        return self.path / layout.store_path(task, store)

    def stores_on_disk(self) -> Iterator[tuple[TaskId, str]]:
        """Every store directory found, in order."""
        for task_path in sorted(self.path.iterdir()):
            try:
                task = TaskId.parse(task_path.name)
            except ValueError:
                continue
            stores = task_path / layout.STORES
            if stores.is_dir():
                for store_path in sorted(stores.iterdir()):
                    if not store_path.name.startswith("."):
                        yield task, store_path.name

    def set_aside(self, task: TaskId, store: str) -> Path:
        """Move an untrusted store out of the way, until ``discard_set_aside``; raises ``OSError``."""
        source = self.store_path(task, store)
        target = self.path / layout.new_set_aside_path(task, store)
        target.parent.mkdir(exist_ok=True)
        os.rename(source, target)
        return target

    def make_way(self, task: TaskId, store: str) -> Path | None:
        """Set an untrusted store aside, or delete it where the file system refuses to move it.

        Returns where it is now. Raises ``OSError`` if it can neither be moved nor deleted, or is not there.
        """
        try:
            return self.set_aside(task, store)
        except FileNotFoundError:
            raise
        except OSError as error:
            log.warning("%s is deleted, since it cannot be set aside: %s", self.store_path(task, store), error)
        self.delete_store(task, store)
        return None

    def set_asides(self) -> list[tuple[TaskId, str, Path]]:
        """What is set aside: a store's former task and name, and its present path."""
        aside = self.path / layout.SET_ASIDE
        paths = sorted(aside.iterdir()) if aside.exists() else []
        found = [(layout.parse_set_aside(path.name), path) for path in paths]
        return [(*what, path) for what, path in found if what is not None]

    def discard_set_aside(self, store: str, partition: int, but: Collection[Path] = ()) -> None:
        """Delete what was set aside for a store's partition, under any ordinal and by any process, but some of it;
        raises ``OSError``."""
        for task, name, path in self.set_asides():
            if (name, task.partition) == (store, partition) and path not in but:
                _delete(path)

    def delete_store(self, task: TaskId, store: str) -> None:
        """Delete a store, which need not exist; raises ``OSError``."""
        path = self.store_path(task, store)
        if path.exists():
            _delete(path)

    def finish_deletion(self, task: TaskId, store: str) -> None:
        """Delete what is left of a store of which some is deleted already; raises ``OSError``."""
        path = self.store_path(task, store)
        if (path / _HALF_DELETED).exists():
            _delete_in_place(path)

    def delete_leftovers(self) -> None:
        """Delete the rest of what an earlier process, or this one, could not delete completely."""
        for pattern in (f"*/{layout.STORES}/{_DELETING}*", f"{layout.SET_ASIDE}/{_DELETING}*"):
            for path in self.path.glob(pattern):
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    log.error("%s could not be deleted: %s", path, error)

    def remove_if_empty(self, task: TaskId) -> None:
        """Remove a task's directory if there is no store left in it."""
        with contextlib.suppress(OSError):
            (self.path / str(task) / layout.STORES).rmdir()
            (self.path / str(task)).rmdir()

    def next_incarnation(self, now_epoch_ms: int) -> int:
        """A number larger than that of any earlier start: routers order by it, and a wall clock may be set
        back."""
        before = self.document(_PROCESS).get("incarnation")
        incarnation = max(now_epoch_ms, before + 1 if type(before) is int else 0)
        # A full disk must not prevent serving what is on it.
        with contextlib.suppress(OSError):
            self._write_process({"process_id": self.process_id, "incarnation": incarnation})
        return incarnation

    def document(self, name: str) -> dict[str, Any]:
        """A JSON object that is kept in a file here; empty if there is none, or it cannot be read as one."""
        try:
            document = json.loads(read_regular(self.path / name))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}

    def _finish_deletions(self) -> None:
        """Before anything takes what is left for stores. One that cannot be deleted is not opened either."""
        for task, store in list(self.stores_on_disk()):
            try:
                self.finish_deletion(task, store)
            except OSError as error:
                log.error("%s could not be deleted: %s", self.store_path(task, store), error)

    def _process_id(self) -> str:
        known = self.document(_PROCESS).get("process_id")
        if isinstance(known, str) and known:
            return known
        process_id = str(uuid.uuid4())
        self._write_process({"process_id": process_id})
        return process_id

    def _write_process(self, document: dict[str, Any]) -> None:
        """After a power failure, too, this is the process that the group knew."""
        write_durably(self.path / _PROCESS, json.dumps(document))


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    denied = denial(path) if isinstance(error, PermissionError) else None
    if denied is not None:
        return AccessDenied(f"The state directory {path} cannot be used: {denied}.")
    return ConfigurationError(
        f"The state directory {path} cannot be written: {error.strerror}. "
        "Give --state-dir a directory that this user may write, on a disk with free space."
    )


def _refuse_others(path: Path) -> None:
    """Refuse what is neither a file nor a directory: what a link leads to would be moved, overwritten or deleted
    as if it lay here, and a pipe would be waited for."""
    for directory in _directories(path):
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise _linked(Path(entry.path))
                if not (entry.is_file() or entry.is_dir()):
                    raise _neither(Path(entry.path))


def _directories(path: Path) -> Iterator[Path]:
    """Those that a worker, or RocksDB, writes, the outer ones first. What a user's supplier has in its own is its
    own business."""
    yield path
    stores = (f"*_*/{layout.STORES}", f"{layout.SET_ASIDE}")
    for pattern in ("*_*", *stores, *(f"{place}/*" for place in stores)):
        for found in path.glob(pattern):
            if found.is_dir() and not (found / IDENTITY_NAME).is_file():
                yield found


def _linked(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is a symbolic link, which a state directory may not contain: what it names could be moved, "
        "overwritten or deleted. Put there what it names, or remove the link."
    )


def _neither(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is neither a file nor a directory, and whoever opened it could wait for ever. Remove it."
    )


def move_directory(source: Path, target: Path) -> None:
    """Rename a directory. Where the file system refuses that, copy it, and delete it where it was.

    An overlay refuses it for what is in a lower layer. The copy is complete and durable before it has its name.
    Raises ``OSError``, also if it could be copied but not deleted.
    """
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
        _delete_in_place(source)


def _copy(source: Path, target: Path) -> None:
    draft = target.with_name(f"{_DELETING}{target.name}")
    if draft.exists():
        shutil.rmtree(draft)
    try:
        copy_durably(source, draft)
    except BaseException:
        # It may be what fills the disk.
        shutil.rmtree(draft, ignore_errors=True)
        raise
    os.rename(draft, target)
    sync_directory(target.parent)


def _delete(path: Path) -> None:
    """Renamed first, so that half of it is never found; beside it, which takes no space on a full disk."""
    doomed = path.with_name(f"{_DELETING}{time.time_ns()}")
    try:
        os.rename(path, doomed)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _delete_in_place(path)
    else:
        shutil.rmtree(doomed)


def _delete_in_place(path: Path) -> None:
    """Marked first and unmarked last, so that half of it is never taken for a store. Empty, it is none."""
    mark = path / _HALF_DELETED
    mark.touch()
    sync_directory(path)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry != mark:
            entry.unlink()
    shutil.rmtree(path)
