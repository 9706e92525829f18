"""``forebay changelog tail`` and ``stat``: show what is in the logs of a topology's stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table

from forebay.cli import worker_settings
from forebay.clock import duration, epoch_ms, time_text
from forebay.errors import SettingError, TopicRefused
from forebay.output import Output, json_output, print_line, progress, quantity
from forebay.store_spec import StoreSpec, headed_topics
from forebay.task_ids import TopicPartition
from forebay_changelog import Changelog, Consumer, Record, Wake
from forebay_changelog.base import Batch, Heartbeat
from forebay_changelog.command import changelog, open_logs, store_spec
from forebay_changelog.kafka.schemas import know_schemas
from forebay_changelog.log_reader import batches_to_end, last_records, raise_lasting
from forebay_changelog.record_documents import record_document, record_json, record_line
from forebay_changelog.record_headers import writer_of

_RECORDS_PER_POLL = 1_000
_WAIT_S = 0.5
_LAST = 10
_SCHEMA_WAIT_S = 10.0
_PARTITION = click.option(
    "--partition", type=click.IntRange(min=0), help="This partition only. [default: all of them]"
)


@changelog.command("tail")
@worker_settings("topology", "changelog", "schema_registry")
@click.argument("store")
@_PARTITION
@click.option("--from-beginning", is_flag=True, help="Print every record that the log still has.")
@click.option(
    "--last",
    type=click.IntRange(min=0),
    help=f"Print so many records of each partition, heartbeats included. [default: {_LAST}]",
)
@click.option("--follow", is_flag=True, help="Go on with each new record, until Ctrl-C.")
@json_output
def tail(
    topology: Path,
    changelog: str,
    schema_registry: str | None,
    store: str,
    partition: int | None,
    from_beginning: bool,
    last: int | None,
    follow: bool,
    output: Output,
) -> None:
    """Print the records of STORE's log, partition by partition: keys and values by the store's codecs.

    Keys and values of avro and protobuf need --schema-registry. Headers are shown where the store keeps them.
    """
    if from_beginning and last is not None:
        raise SettingError("--from-beginning prints all records; leave out either it or --last.")
    opened, loaded = open_logs(topology, changelog)
    spec = store_spec(loaded, store)
    topic_partitions = _topic_partitions(opened, spec, partition)
    directory = TemporaryDirectory(prefix="forebay-schemas-", ignore_cleanup_errors=True)
    reader = contextlib.closing(opened.consumer(headed=headed_topics([spec])))
    with directory as schemas, reader as consumer:
        know_schemas(schema_registry, Path(schemas), _SCHEMA_WAIT_S)
        positions = {}
        for tp in topic_partitions:
            if from_beginning:
                positions[tp] = _all_of(consumer, tp, spec, output)
            else:
                positions[tp] = _last_of(opened, consumer, tp, _LAST if last is None else last, spec, output)
        if follow:
            with contextlib.suppress(KeyboardInterrupt):
                _follow(consumer, positions, spec, output)


def _all_of(consumer: Consumer, tp: TopicPartition, spec: StoreSpec, output: Output) -> int:
    position = 0
    for batch in batches_to_end(consumer, tp):
        _print(batch.records, tp, spec, output)
        position = batch.position
    return position


def _last_of(
    opened: Changelog, consumer: Consumer, tp: TopicPartition, count: int, spec: StoreSpec, output: Output
) -> int:
    end = opened.end_offsets([tp]).get(tp, 0)
    records, position = last_records(consumer, tp, count, end)
    _print(records, tp, spec, output)
    return position


def _follow(consumer: Consumer, positions: dict[TopicPartition, int], spec: StoreSpec, output: Output) -> None:
    never_set = Wake()
    for tp, position in positions.items():
        consumer.assign(tp, position)
    while True:
        for batch in consumer.poll(_RECORDS_PER_POLL):
            _print(batch.records, batch.topic_partition, spec, output)
        raise_lasting(consumer)
        consumer.wait(never_set, _WAIT_S)


def _print(records: Sequence[Record], tp: TopicPartition, spec: StoreSpec, output: Output) -> None:
    for record in records:
        document = record_document(spec.with_headers, tp.partition, record)
        print_line(record_json(document) if output.as_json else record_line(document))


@changelog.command("stat")
@worker_settings("topology", "changelog")
@click.argument("stores", nargs=-1)
@_PARTITION
@json_output
def stat(topology: Path, changelog: str, stores: Sequence[str], partition: int | None, output: Output) -> None:
    """Read the logs of STORES, or of all, and show each partition's offsets, records and writers."""
    opened, loaded = open_logs(topology, changelog)
    specs = [store_spec(loaded, store) for store in stores] or list(loaded.stores.values())
    logs = [_log_document(opened, spec, partition) for spec in specs]
    output.show({"logs": logs}, *_tables(logs))


def _log_document(opened: Changelog, spec: StoreSpec, partition: int | None) -> dict[str, Any]:
    found = []
    topic_partitions = _topic_partitions(opened, spec, partition)
    offsets = sum(opened.end_offsets(topic_partitions).values())
    reader = contextlib.closing(opened.consumer(replay=True, headed=headed_topics([spec])))
    with reader as consumer, progress(f"reading {spec.name}", offsets) as advance:
        for tp in topic_partitions:
            statistics, position = LogStatistics(tp.partition), 0
            for batch in batches_to_end(consumer, tp):
                statistics.add(batch)
                advance(batch.position - position)
                position = batch.position
            found.append(statistics.document(epoch_ms()))
    identity = opened.identity(spec.topic)
    return {"store": spec.name, "topic": spec.topic, "identity": identity, "partitions": found}


def _tables(logs: list[dict[str, Any]]) -> Iterator[RenderableType]:
    for log in logs:
        table = Table(title=f"{log['store']}: {log['topic']}, {log['identity']}", title_justify="left")
        for column in ("partition", "beginning", "end offset", "records", "tombstones", "heartbeats"):
            table.add_column(column, justify="right")
        table.add_column("last record")
        table.add_column("writers, and how old what they state is", overflow="fold")
        for part in log["partitions"]:
            numbers = ("partition", "beginning", "end_offset", "records", "tombstones", "heartbeats")
            when = part["last_timestamp_ms"]
            ages = {one["writer"]: one["age_ms"] for one in part["writers"]}
            writers = ", ".join(f"{name} {'?' if ms is None else duration(ms)}" for name, ms in ages.items())
            table.add_row(
                *(f"{part[name]:,}" for name in numbers), "" if when is None else time_text(when), writers
            )
        yield table


def _topic_partitions(opened: Changelog, spec: StoreSpec, partition: int | None) -> list[TopicPartition]:
    """Those asked for; raises ``SettingError`` and ``ChangelogError``."""
    if partition is not None and partition >= spec.partitions:
        partitions = quantity(spec.partitions, "partition")
        raise SettingError(f"The store {spec.name!r} has {partitions}, from 0; there is no {partition}.")
    # A topic that workers refuse, as it may lose records, can still be read.
    with contextlib.suppress(TopicRefused):
        opened.ensure(spec, create=False)
    wanted = range(spec.partitions) if partition is None else [partition]
    return [TopicPartition(spec.topic, number) for number in wanted]


@dataclass
class LogStatistics:
    """One partition: its offsets, how many records it has of each sort, and each writer's newest heartbeat."""

    partition: int
    beginning: int = 0
    end_offset: int = 0
    records: int = 0
    """Without heartbeats, but with tombstones."""
    tombstones: int = 0
    heartbeats: int = 0
    last_timestamp_ms: int | None = None
    """Of the last record that is no heartbeat."""
    writers: dict[str, Heartbeat | None] = field(default_factory=dict)
    """By name; None if its newest heartbeat cannot be read."""

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.beginning, self.end_offset = batch.beginning, batch.end.offset
        for _, key, value, timestamp_ms, is_heartbeat in batch.records:
            if is_heartbeat:
                self._add_heartbeat(key, value)
                continue
            self.records += 1
            self.tombstones += value is None
            self.last_timestamp_ms = timestamp_ms

    def _add_heartbeat(self, key: bytes, value: bytes | None) -> None:
        self.heartbeats += 1
        writer = writer_of(key) or ""
        if value is None:
            self.writers.pop(writer, None)
            return
        try:
            self.writers[writer] = Heartbeat.parse(value)
        except ValueError:
            self.writers[writer] = None

    def document(self, now_ms: float) -> dict[str, Any]:
        """The figures as JSON values; ages are as of ``now_ms``, in epoch milliseconds."""
        writers = [_writer_document(writer, beat, now_ms) for writer, beat in sorted(self.writers.items())]
        return {**vars(self), "writers": writers}


def _writer_document(writer: str, beat: Heartbeat | None, now_ms: float) -> dict[str, Any]:
    as_of_ms = None if beat is None else beat.as_of_ms
    return {
        "writer": writer,
        "as_of_ms": as_of_ms,
        "age_ms": None if as_of_ms is None else max(0, int(now_ms) - as_of_ms),
        "query_id": None if beat is None else beat.query_id,
        "batch_id": None if beat is None else beat.batch_id,
        "filling": beat is not None and beat.filling,
    }
