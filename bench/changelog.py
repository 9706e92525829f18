"""The SQLite changelog: records appended and read a second."""

from __future__ import annotations

import time
from pathlib import Path

from bench.comparison import Effort
from bench.figures import Row
from bench.records import records

from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog

RECORDS = 200_000
BATCH_RECORDS = 20_000
POLL_RECORDS = 50_000
_SOME = TopicPartition("bench", 0)


def appends_and_reads(effort: Effort) -> list[Row]:
    rows = [(key, value, 0) for key, value in records(RECORDS).items()]
    appended, read = [], []
    for number in range(effort.rounds):
        changelog = SqliteChangelog(effort.directory / f"log-{number}")
        changelog.ensure_topic(_SOME.topic, 1)
        appended.append(_append(Path(changelog.path(_SOME)), rows))
        read.append(_read(changelog))
    size = f"{RECORDS:,} records of 16 + 100 bytes, one partition"
    return [
        Row(f"SQLite changelog, append in batches of {BATCH_RECORDS:,}: {size}", "records/s", tuple(appended)),
        Row("SQLite changelog, read the same", "records/s", tuple(read)),
    ]


def _append(path: Path, rows: list[tuple[bytes, bytes | None, int]]) -> float:
    begun = time.perf_counter()
    for at in range(0, len(rows), BATCH_RECORDS):
        sqlite_batches.append_batch(
            str(path), rows[at : at + BATCH_RECORDS], writer="w", query_id="q", batch_id=at, write_name="w"
        )
    return len(rows) / (time.perf_counter() - begun)


def _read(changelog: SqliteChangelog) -> float:
    consumer = changelog.consumer()
    consumer.assign(_SOME, 0)
    count = 0
    begun = time.perf_counter()
    while count < RECORDS:
        count += sum(len(batch.records) for batch in consumer.poll(POLL_RECORDS))
    taken = time.perf_counter() - begun
    consumer.close()
    return count / taken
