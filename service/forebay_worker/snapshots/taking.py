"""What a worker takes: a copy of a store from another worker, file by file, or else a saved snapshot."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from forebay.streams_metadata import HostInfo
from forebay.task_ids import TopicPartition
from forebay_web.request_guard import SNAPSHOTS_PATH
from forebay_worker.snapshots.giving import PIECE_HEAD
from forebay_worker.state.fsync import create_file, sync_directory
from forebay_worker.tasks.restoration import CopyProgress

if TYPE_CHECKING:
    from forebay_worker.snapshots.repository import SnapshotRepository

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 4
_TIMEOUT_S = 20.0
_TAKING_TIMEOUT_S = 120.0
"""A checkpoint flushes what the store has in memory."""
_ATTEMPTS = 3
"""One after the other that bring nothing of a file: its worker is gone."""
_RETRY_S = 1.0


class CopyFailed(Exception):
    """A copy cannot be had from a worker, or what came is not what it sent."""


@dataclass(frozen=True)
class PeerCopier:
    """The ``Copier`` of other workers' stores: ``holders`` names them, those to be asked first at the front."""

    holders: Callable[[TopicPartition], Sequence[HostInfo]]
    token: Callable[[], bytes] | None
    scheme: str
    authorities: ssl.SSLContext
    repository: SnapshotRepository | None = None
    """Where to look once none of them gives one."""

    def copy(
        self, store: str, tp: TopicPartition, target: Path, stopped: Callable[[], bool], progress: CopyProgress
    ) -> str | None:
        """Whoever fails costs a new beginning with the next."""
        for host in self.holders(tp):
            headers = {} if self.token is None else {"authorization": self.token().decode("latin-1")}
            try:
                with httpx.Client(
                    base_url=f"{self.scheme}://{host}",
                    headers=headers,
                    verify=self.authorities,
                    timeout=_TIMEOUT_S,
                    trust_env=False,
                ) as http:
                    _Transfer(http, target, stopped, progress).run(store, tp.partition)
                return f"what {host} has"
            except (CopyFailed, httpx.HTTPError) as error:
                shutil.rmtree(target, ignore_errors=True)
                progress.leads_to = 0
                if stopped():
                    return None
                log.info("%s: no copy from %s: %s", tp, host, error or repr(error))
        if self.repository is None or stopped():
            return None
        return self.repository.copy(store, tp.partition, target, stopped, progress)


@dataclass(frozen=True)
class _Transfer:
    """One worker's snapshot on its way here."""

    http: httpx.Client
    target: Path
    stopped: Callable[[], bool]
    progress: CopyProgress

    def run(self, store: str, partition: int) -> None:
        where: dict[str, str | int] = {"store": store, "partition": partition}
        answer = self.http.post(SNAPSHOTS_PATH, params=where, timeout=_TAKING_TIMEOUT_S)
        if answer.status_code != 200:
            raise CopyFailed(f"{answer.status_code} {_detail(answer)}")
        document: Any = answer.json()
        snapshot, files = str(document["snapshot"]), dict(document["files"])
        self.progress.leads_to = int(document["position"])
        try:
            if any(name != os.path.basename(name) or name.startswith(".") for name in files):
                raise CopyFailed("its files have names that are none")
            self.target.mkdir(parents=True)
            require_space(self.target, sum(files.values()))
            all_or_none([partial(self._file, snapshot, name, size) for name, size in files.items()])
            sync_directory(self.target)
        finally:
            with suppress(httpx.HTTPError):
                self.http.delete(f"{SNAPSHOTS_PATH}/{snapshot}")

    def _file(self, snapshot: str, name: str, size: int) -> None:
        """Copy a file, going on where it was interrupted."""
        with open(create_file(self.target / name), "wb") as file:
            vain = 0
            while file.tell() < size:
                begun = file.tell()
                try:
                    for piece in self._pieces(snapshot, name, begun):
                        file.write(piece)
                        if self.stopped():
                            raise CopyFailed("it is not wanted any more")
                    break
                except httpx.TransportError:
                    vain = vain + 1 if file.tell() == begun else 0
                    if vain == _ATTEMPTS:
                        raise
                    time.sleep(_RETRY_S)
            if file.tell() != size:
                raise CopyFailed(f"{name} has {file.tell()} bytes instead of {size}")
            file.flush()
            os.fsync(file.fileno())

    def _pieces(self, snapshot: str, name: str, start: int) -> Iterator[bytes]:
        """What follows an offset of a file, each piece as it was sent; raises ``CopyFailed``."""
        received = bytearray()
        with self.http.stream("GET", f"{SNAPSHOTS_PATH}/{snapshot}/{name}", params={"from": start}) as answer:
            if answer.status_code != 200:
                answer.read()
                raise CopyFailed(f"{answer.status_code} {_detail(answer)}")
            for some in answer.iter_raw():
                received += some
                while len(received) >= PIECE_HEAD.size:
                    length, checksum = PIECE_HEAD.unpack_from(received)
                    end = PIECE_HEAD.size + length
                    if len(received) < end:
                        break
                    piece = bytes(received[PIECE_HEAD.size : end])
                    if zlib.crc32(piece) != checksum:
                        raise CopyFailed(f"a piece of {name} is not as it was sent")
                    yield piece
                    del received[:end]
        if received:
            raise CopyFailed(f"{name} ends within a piece")


def all_or_none(copies: Sequence[Callable[[], None]]) -> None:
    """Copy files, some at once; after one that fails no other begins, and that failure is raised."""
    pool = ThreadPoolExecutor(_FILES_AT_ONCE, "forebay-copy")
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


def _detail(answer: httpx.Response) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["detail"])
    return answer.text[:200]
