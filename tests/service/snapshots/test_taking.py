"""A copy is what was sent, or none, whatever happens on the way."""

import io
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from forebay.errors import Overloaded, UnknownPath
from forebay.streams_metadata import HostInfo
from forebay.task_ids import TopicPartition
from forebay_worker.snapshots import giving, taking
from forebay_worker.snapshots.giving import Snapshots
from forebay_worker.snapshots.taking import PeerCopier
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.restoration import CopyProgress

TP = TopicPartition("t", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDbStore]:
    store = RocksDbStore("s", tmp_path / "store", RocksDbMemory(8 << 20, 8 << 20).options())
    for n in range(20_000):
        store.put(b"k%06d" % n, os.urandom(50))
    store.commit({})
    yield store
    store.close()


class Giver:
    """A server of snapshots; ``spoil(body, nth request)`` changes what it sends."""

    def __init__(self, snapshots: Snapshots, store: RocksDbStore) -> None:
        self.snapshots, self.store = snapshots, store
        self.spoil: Any = lambda body, number: body
        self.requests: list[str] = []
        self.lock = threading.Lock()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        with self.lock:
            self.requests.append(f"{handler.command} {handler.path}")
            number = sum(one.startswith("GET") for one in self.requests)
        if handler.command == "POST":
            name, taken = self.snapshots.take(self.store)
            body = json.dumps({"snapshot": name, "position": 1, "files": dict(taken.files)}).encode()
        elif handler.command == "DELETE":
            self.snapshots.drop(url.path.split("/")[3])
            body = b""
        else:
            _, _, _, snapshot, file = url.path.split("/")
            offset, pieces = int(parse_qs(url.query)["from"][0]), []
            while piece := self.snapshots.piece(snapshot, file, offset):
                pieces.append(piece)
                offset += len(piece) - giving.PIECE_HEAD.size
            whole = b"".join(pieces)
            body = self.spoil(whole, number)
            if len(body) < len(whole):
                handler.send_response(200)
                handler.send_header("content-length", str(len(whole)))
                handler.end_headers()
                handler.wfile.write(body)
                handler.close_connection = True
                return
        handler.send_response(200)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def serving(giver: Giver) -> Iterator[HostInfo]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            giver.answer(self)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield HostInfo("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def copied(target: Path, *hosts: HostInfo) -> HostInfo | None:
    copier = PeerCopier(lambda _: hosts, None, "http", ssl.create_default_context())
    return copier.copy("s", TP, target, lambda: False, CopyProgress(None, 0))


def content(path: Path) -> list[tuple[bytes, bytes]]:
    store = RocksDbStore("s", path, RocksDbMemory(8 << 20, 8 << 20).options())
    try:
        return list(store.scan(b"k", b"l"))
    finally:
        store.close()


def test_a_copy_is_the_store_as_it_was(tmp_path, store):
    giver = Giver(Snapshots(tmp_path / "given"), store)
    with serving(giver) as host:
        before = list(store.scan(b"k", b"l"))
        assert copied(tmp_path / "copy", host) == f"what {host} has"
    store.delete(b"k000001")
    store.commit({})
    assert content(tmp_path / "copy") == before
    assert not list((tmp_path / "given").iterdir())


def test_a_wrong_byte_is_noticed_and_another_worker_gives(tmp_path, store):
    bad, good = Giver(Snapshots(tmp_path / "bad"), store), Giver(Snapshots(tmp_path / "good"), store)

    def flip(body: bytes, number: int) -> bytes:
        if len(body) < 100_000:
            return body
        at = len(body) // 2
        return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]

    bad.spoil = flip
    with serving(bad) as first, serving(good) as second:
        assert copied(tmp_path / "none", first) is None
        assert not (tmp_path / "none").exists()
        assert copied(tmp_path / "copy", first, second) == f"what {second} has"
    assert content(tmp_path / "copy") == list(store.scan(b"k", b"l"))
    assert not list((tmp_path / "bad").iterdir())


def test_a_file_that_is_interrupted_goes_on_where_it_was(tmp_path, store, monkeypatch):
    monkeypatch.setattr(taking, "_RETRY_S", 0.01)
    giver = Giver(Snapshots(tmp_path / "given"), store)
    giver.spoil = lambda body, number: body[: 300 << 10] if len(body) > 300 << 10 else body
    with serving(giver) as host:
        assert copied(tmp_path / "copy", host) == f"what {host} has"
    assert content(tmp_path / "copy") == list(store.scan(b"k", b"l"))
    starts = [request.rpartition("=")[2] for request in giver.requests if ".sst" in request]
    assert starts[:2] == ["0", str(256 << 10)]


def test_what_a_disk_takes_in_part_is_written_whole(tmp_path, store, monkeypatch):
    """As one does that is nearly full, until somebody makes room."""

    class Reluctant(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:10_000])

    monkeypatch.setattr(taking, "open", lambda path, *_, **__: Reluctant(path, "wb"), raising=False)
    giver = Giver(Snapshots(tmp_path / "given"), store)
    with serving(giver) as host:
        assert copied(tmp_path / "copy", host) == f"what {host} has"
    assert content(tmp_path / "copy") == list(store.scan(b"k", b"l"))


@pytest.mark.parametrize("name", ["../x", "/etc/x", ".hidden"])
def test_files_of_no_store_are_not_written(tmp_path, store, name):
    giver = Giver(Snapshots(tmp_path / "given"), store)
    take = giver.snapshots.take

    def renamed(store: RocksDbStore) -> Any:
        taken, snapshot = take(store)
        return taken, giving.StoreCheckpoint(snapshot.path, {name: 1})

    giver.snapshots.take = renamed
    with serving(giver) as host:
        assert copied(tmp_path / "copy", host) is None
    assert not (tmp_path / "x").exists()


def test_what_nobody_reads_is_dropped(tmp_path, store, monkeypatch):
    snapshots = Snapshots(tmp_path / "given")
    taken = [snapshots.take(store)[0] for _ in range(4)]
    with pytest.raises(Overloaded):
        snapshots.take(store)
    monkeypatch.setattr(giving, "_IDLE_MS", 0.0)
    snapshots.take(store)
    with pytest.raises(UnknownPath):
        snapshots.piece(taken[0], "CURRENT", 0)
    assert len(list((tmp_path / "given").iterdir())) == 1
    # What a killed process left is removed at the next start.
    Snapshots(tmp_path / "given")
    assert not (tmp_path / "given").exists()


def test_where_a_copy_leads_is_known_while_it_is_on_its_way(tmp_path, store):
    """Others may wait for it: it is nearer to the end of the log than a replay."""
    giver, progress, seen = Giver(Snapshots(tmp_path / "given"), store), CopyProgress(None, 0), set()

    def note(body: bytes, _: int) -> bytes:
        seen.add(progress.leads_to)
        return body

    giver.spoil = note
    with serving(giver) as host:
        copier = PeerCopier(lambda _: [host], None, "http", ssl.create_default_context())
        copier.copy("s", TP, tmp_path / "copy", lambda: False, progress)
        assert seen == {1}
        giver.spoil = lambda body, _: body[:-1] if len(body) > 100_000 else body
        assert copier.copy("s", TP, tmp_path / "none", lambda: False, progress) is None
    assert progress.leads_to == 0
