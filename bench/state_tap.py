"""A tap that follows a query's checkpoint: how soon after a batch its changes are in the log, and at what cost.

Against the query itself in processor time, and against Spark's own source of state in how long a batch takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import Effort
from bench.figures import Row, Target, percentile
from bench.process import Family, max_resident_mb

from forebay.task_ids import TopicPartition
from forebay_changelog import Heartbeat
from forebay_changelog.sqlite.changelog import SqliteChangelog


@dataclass(frozen=True)
class _Load:
    """How many batches follow the first, which is copied, and how often one begins."""

    batches: int
    trigger_s: int


CHANGES = {1_000: _Load(20, 1), 100_000: _Load(8, 1), 2_000_000: _Load(3, 60)}
"""By how many keys a batch changes. Spark takes so long for the largest that batches do not follow at once."""
PARTITIONS = 4
_TOPIC = "bench-counts-changelog"
_TOPOLOGY = """
application_id = "bench"

[[subtopology]]
name = "counts"
partitions = 4

[[subtopology.store]]
name = "counts"
key = "int64"

[subtopology.store.spark_state]
fields = [{ name = "count", position = 0, function = "count" }, { name = "mean", position = 1, function = "avg" }]
"""
_DEADLINE_S = 600.0
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class _Followed:
    """One query that was followed to its end."""

    delays_ms: list[float]
    tap_s: float
    query_s: float
    state_source_s: list[float]
    max_resident_mb: float


def state_tap(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    for changes, load in CHANGES.items():
        followed = _follow(effort.directory / f"{changes}", changes, load)
        what = f"tap, {changes:,} changes a batch"
        rows += [
            Row(f"{what}: in the log after the commit, p50", "ms", (percentile(followed.delays_ms, 50),)),
            Row(f"{what}: in the log after the commit, p99", "ms", (percentile(followed.delays_ms, 99),)),
            Row(
                f"{what}: processor time, its start included",
                "s",
                (followed.tap_s,),
                "the query itself",
                (followed.query_s,),
            ),
            Row(f"{what}: most memory", "MB", (followed.max_resident_mb,)),
            Row(
                f"{what}: a batch is in the log",
                "s",
                tuple(delay / 1000 for delay in followed.delays_ms),
                "read by Spark's own source of state",
                tuple(followed.state_source_s),
                Target(1.0, at_least=False),
            ),
        ]
    return rows


def _follow(directory: Path, changes: int, load: _Load) -> _Followed:
    directory.mkdir(parents=True)
    topology, checkpoint = directory / "topology.toml", directory / "checkpoint"
    topology.write_text(_TOPOLOGY)
    log = f"sqlite://{directory / 'log'}"
    batches = load.batches
    options = {"checkpoint": checkpoint, "changes": changes, "batches": batches + 1, "trigger-s": load.trigger_s}
    query = _started(
        "bench.tapped_query", *(part for name, value in options.items() for part in (f"--{name}", value))
    )
    tap = _started(
        "forebay", "spark", "follow", "--topology", topology, "--changelog", log, "--checkpoint", checkpoint
    )
    try:
        query_use, tap_use = Family(query.pid), Family(tap.pid)
        commits = checkpoint / "commits"
        _wait(lambda: (commits / str(batches)).exists(), query)
        query_s = query_use.processor_s
        ended_ms = {batch: (commits / str(batch)).stat().st_mtime_ns / 1e6 for batch in range(1, batches + 1)}
        changelog = SqliteChangelog(directory / "log")
        _wait(lambda: _newest_batch(changelog) == batches, tap)
        tap_s, max_mb = tap_use.processor_s, max_resident_mb(tap.pid)
        heartbeats = list(_heartbeats(changelog))
        assert query.stdout is not None
        report = json.loads(query.stdout.readlines()[-1])
        return _Followed(
            [_reached_ms(heartbeats, batch) - moment for batch, moment in ended_ms.items()],
            tap_s,
            query_s,
            report["state_source_s"],
            max_mb,
        )
    finally:
        for process in (query, tap):
            process.kill()
            process.wait()


def _started(module: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True
    )


def _wait(condition: object, process: subprocess.Popen[str]) -> None:
    assert callable(condition)
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args} has ended, or takes too long.")
        time.sleep(0.05)


def _newest_batch(changelog: SqliteChangelog) -> int:
    heartbeat = changelog.last_heartbeat(_TOPIC, "counts")
    return -1 if heartbeat is None else heartbeat.batch_id


def _reached_ms(heartbeats: list[tuple[int, float]], batch: int) -> float:
    """When the log had a batch: with its own heartbeat, or with a later one's where the first copy was of that."""
    return min(written_ms for reached, written_ms in heartbeats if reached >= batch)


def _heartbeats(changelog: SqliteChangelog) -> Iterator[tuple[int, float]]:
    """The batch that each heartbeat is of, and when it was written, in epoch milliseconds."""
    consumer = changelog.consumer()
    consumer.assign(TopicPartition(_TOPIC, PARTITIONS - 1), 0)
    ended = False
    while not ended:
        for batch in consumer.poll(100_000):
            ended = batch.position >= batch.end.offset
            for _, _, value, timestamp_ms, is_heartbeat in batch.records:
                if is_heartbeat and value is not None:
                    yield Heartbeat.parse(value).batch_id, float(timestamp_ms)
    consumer.close()
