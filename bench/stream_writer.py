"""Writes rows to a store's log at a constant rate until it is told to end: a process of its own.

``python -m bench.stream_writer`` reads a ``Stream`` as JSON from standard input, and ends when that is closed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.records import records

from forebay.store_spec import StoreSpec
from forebay.topology_file import load_topology
from forebay_changelog.base import open_changelog
from tests.support.logs import KafkaLog, Row, SqliteLog

_TURN_S = 0.01
_HEARTBEAT_S = 0.5


@dataclass(frozen=True)
class Stream:
    """What is written where: random rows of the first ``keys``, this many a second."""

    changelog: str
    topology: str
    store: str
    keys: int
    per_second: int


@contextlib.contextmanager
def streaming(stream: Stream) -> Iterator[None]:
    """A stream that flows meanwhile; none with a rate of 0."""
    if not stream.per_second:
        yield
        return
    command = [sys.executable, "-m", "bench.stream_writer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(stream)).encode() + b"\n")
        process.stdin.flush()
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(30)


def main() -> None:
    """Write until standard input ends."""
    stream = Stream(**json.loads(sys.stdin.readline()))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    spec = load_topology(Path(stream.topology)).stores[stream.store]
    log = _log(stream.changelog)
    rows = _rows_by_turn(spec, stream)
    begun, turn, beaten_s = time.monotonic(), 0, 0.0
    # A log refuses batches older than those that it has.
    first_batch = int(time.time() * 1000)
    while not ended.wait(max(0.0, begun + turn * _TURN_S - time.monotonic())):
        log.append_rows(spec, next(rows), "stream", first_batch + turn)
        turn += 1
        if time.monotonic() - beaten_s >= _HEARTBEAT_S:
            beaten_s = time.monotonic()
            log.append(spec, {}, "beats", first_batch + turn)


def _log(url: str) -> KafkaLog | SqliteLog:
    changelog = open_changelog(url)
    return KafkaLog(changelog) if url.startswith("kafka:") else SqliteLog(changelog)  # type: ignore[arg-type]


def _rows_by_turn(spec: StoreSpec, stream: Stream) -> Iterator[dict[int, list[Row]]]:
    """The rows of each turn by partition, prepared for a hundred turns and then repeated with their own time.

    They are prepared before it returns: what is late would be caught up, at more than the stream's rate.
    """
    rng, content = random.Random(2), records(stream.keys)
    keys, values = list(content), list(content.values())
    place = {key: spec.partition_of(key) for key in keys}
    turns: list[dict[int, list[tuple[bytes, bytes]]]] = []
    for _ in range(100):
        turn: dict[int, list[tuple[bytes, bytes]]] = {}
        count = max(1, int(stream.per_second * _TURN_S))
        # Of a key that keeps its value, followers are told nothing.
        for key, value in zip(rng.choices(keys, k=count), rng.choices(values, k=count), strict=True):
            turn.setdefault(place[key], []).append((key, value))
        turns.append(turn)
    return (_as_of_now(turn) for turn in itertools.cycle(turns))


def _as_of_now(turn: dict[int, list[tuple[bytes, bytes]]]) -> dict[int, list[Row]]:
    now_ms = int(time.time() * 1000)
    return {partition: [(key, value, now_ms) for key, value in rows] for partition, rows in turn.items()}


if __name__ == "__main__":
    main()
