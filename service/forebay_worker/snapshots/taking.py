"""What a worker takes: a copy of a store from another worker, file by file, or else a saved snapshot."""

from __future__ import annotations

import json
import logging
import os
import shutil
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from forebay.streams_metadata import HostInfo
from forebay.task_ids import TopicPartition
from forebay_web.request_guard import SNAPSHOTS_PATH
from forebay_worker.snapshots.giving import PIECE_BYTES, PIECE_HEAD
from forebay_worker.state.fsync import create_file, sync_directory
from forebay_worker.tasks.restoration import CopyProgress

if TYPE_CHECKING:
    from forebay_worker.snapshots.repository import SnapshotRepository

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 2
"""More are hardly faster, and the giver's reads feel them."""
_MAX_PIECE_BYTES = 16 << 20
"""Other versions may send larger pieces than this one."""
_TIMEOUT_S = 20.0
_TAKING_TIMEOUT_S = 120.0
"""A checkpoint flushes what the store has in memory."""
_ATTEMPTS = 3
"""One after the other that bring nothing of a file: its worker is gone."""
_RETRY_S = 1.0


class CopyFailed(Exception):
    """A copy cannot be had from a worker, or what came is not what it sent."""


class _Broken(CopyFailed):
    """The connection was refused or interrupted."""


@contextmanager
def _connecting() -> Iterator[None]:
    """Tells what a connection fails with from what the disk refuses."""
    try:
        yield
    except (OSError, HTTPException) as error:
        raise _Broken(str(error) or repr(error)) from error


@dataclass(frozen=True)
class PeerCopier:
    """Gets copies of other workers' stores: ``holders`` names them, those to be asked first at the front."""

    holders: Callable[[TopicPartition], Sequence[HostInfo]]
    token: Callable[[], bytes] | None
    scheme: str
    authorities: ssl.SSLContext
    repository: SnapshotRepository | None = None
    """Where to look once none of them gives one."""

    def copy(
        self, store: str, tp: TopicPartition, target: Path, stopped: Callable[[], bool], progress: CopyProgress
    ) -> str | None:
        """Copy a partition of a store into a new directory; returns what was copied, None if nobody gives one.

        Whoever fails costs a new beginning with the next. Raises ``OSError`` if the disk refuses.
        """
        for host in self.holders(tp):
            try:
                _Transfer(partial(self._connected, host), self._headers(), target, stopped, progress).run(
                    store, tp.partition
                )
                return f"what {host} has"
            except CopyFailed as error:
                shutil.rmtree(target, ignore_errors=True)
                progress.leads_to = 0
                if stopped():
                    return None
                log.info("%s: no copy from %s: %s", tp, host, error)
        if self.repository is None or stopped():
            return None
        return self.repository.copy(store, tp.partition, target, stopped, progress)

    def _headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": self.token().decode("latin-1")}

    def _connected(self, host: HostInfo, timeout_s: float) -> HTTPConnection:
        if self.scheme == "https":
            return HTTPSConnection(host.host, host.port, timeout=timeout_s, context=self.authorities)
        return HTTPConnection(host.host, host.port, timeout=timeout_s)


@dataclass(frozen=True)
class _Transfer:
    """One worker's snapshot on its way here.

    By Python's own client: gigabytes pass through it, of which it copies none.
    """

    connected: Callable[[float], HTTPConnection]
    """A connection to the worker, with this timeout in seconds."""
    headers: Mapping[str, str]
    target: Path
    stopped: Callable[[], bool]
    progress: CopyProgress

    def run(self, store: str, partition: int) -> None:
        query = urlencode({"store": store, "partition": partition})
        body = self._answer("POST", f"{SNAPSHOTS_PATH}?{query}", _TAKING_TIMEOUT_S)
        try:
            document = json.loads(body)
            snapshot, files = str(document["snapshot"]), dict(document["files"])
            self.progress.leads_to = int(document["position"])
        except (ValueError, KeyError, TypeError) as error:
            raise CopyFailed(f"its answer is none of a worker's: {error!r}") from None
        try:
            if any(name != os.path.basename(name) or name.startswith(".") for name in files):
                raise CopyFailed("its files have names that are none")
            self.target.mkdir(parents=True)
            require_space(self.target, sum(files.values()))
            copies = [partial(self._file, snapshot, name, size) for name, size in files.items()]
            all_or_none(copies, at_once=_FILES_AT_ONCE)
            sync_directory(self.target)
        finally:
            with suppress(CopyFailed):
                self._answer("DELETE", f"{SNAPSHOTS_PATH}/{snapshot}", _TIMEOUT_S)

    def _answer(self, method: str, path: str, timeout_s: float) -> bytes:
        """The body of an answer; raises ``CopyFailed`` for a refusal."""
        with closing(self.connected(timeout_s)) as connection, _connecting():
            return _accepted(self._requested(connection, method, path)).read()

    def _requested(self, connection: HTTPConnection, method: str, path: str) -> HTTPResponse:
        connection.request(method, path, headers=dict(self.headers))
        return connection.getresponse()

    def _file(self, snapshot: str, name: str, size: int) -> None:
        """Copy a file, going on where it was interrupted."""
        with open(create_file(self.target / name), "wb", buffering=0) as file:
            vain = 0
            while file.tell() < size:
                begun = file.tell()
                try:
                    for piece in self._pieces(snapshot, name, begun):
                        # A disk that is nearly full takes less than all, and refuses the rest.
                        while piece := piece[file.write(piece) :]:
                            pass
                        if self.stopped():
                            raise CopyFailed("it is not wanted any more")
                    break
                except _Broken:
                    vain = vain + 1 if file.tell() == begun else 0
                    if vain == _ATTEMPTS or self.stopped():
                        raise
                    time.sleep(_RETRY_S)
            if file.tell() != size:
                raise CopyFailed(f"{name} has {file.tell()} bytes instead of {size}")
            os.fsync(file.fileno())

    def _pieces(self, snapshot: str, name: str, start: int) -> Iterator[memoryview]:
        """What follows an offset of a file, each piece until the next; raises ``CopyFailed``."""
        path = f"{SNAPSHOTS_PATH}/{snapshot}/{quote(name)}?from={start}"
        with closing(self.connected(_TIMEOUT_S)) as connection:
            with _connecting():
                answer = _accepted(self._requested(connection, "GET", path))
            head, room = memoryview(bytearray(PIECE_HEAD.size)), memoryview(bytearray(PIECE_BYTES))
            while _filled(answer, head):
                length, checksum = PIECE_HEAD.unpack(head)
                if len(room) < length <= _MAX_PIECE_BYTES:
                    room = memoryview(bytearray(length))
                piece = room[:length]
                if len(piece) != length or not _filled(answer, piece):
                    raise CopyFailed(f"{name} ends within a piece")
                if zlib.crc32(piece) != checksum:
                    raise CopyFailed(f"a piece of {name} is not as it was sent")
                yield piece


def _accepted(answer: HTTPResponse) -> HTTPResponse:
    if answer.status >= 300:
        text = answer.read().decode("utf-8", "replace")
        with suppress(ValueError, KeyError, TypeError):
            text = str(json.loads(text)["detail"])
        raise CopyFailed(f"{answer.status} {text[:200]}")
    return answer


def _filled(answer: HTTPResponse, room: memoryview) -> bool:
    """Whether an answer has as much more as there is room for."""
    at = 0
    while at < len(room):
        with _connecting():
            count = answer.readinto(room[at:])
        if not count:
            if answer.length:
                raise _Broken("the answer breaks off")
            if at:
                raise CopyFailed("the answer ends within a piece")
            return False
        at += count
    return True


def all_or_none(copies: Sequence[Callable[[], None]], *, at_once: int) -> None:
    """Copy files, so many at once; after one that fails no other begins, and that failure is raised."""
    pool = ThreadPoolExecutor(at_once, "forebay-copy")
    try:
        for done in [pool.submit(copy) for copy in copies]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def require_space(directory: Path, needed_bytes: int) -> None:
    """Raise ``CopyFailed`` unless a directory's disk has so many bytes free."""
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise CopyFailed(f"it has {needed_bytes} bytes, and {free_bytes} are free here")
