"""``forebay changelog``: maintain the logs of a topology's stores by hand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from forebay.cli import worker_settings
from forebay.errors import ChangelogError, ChangelogUnreachable, SettingError, TopicMissing
from forebay.output import Output, json_output, print_line, progress, quantity
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_changelog import Changelog, open_changelog
from forebay_changelog.base import CompactionLimits, Record
from forebay_changelog.log_reader import batches_to_end

_LIMITS = CompactionLimits()
_BETWEEN_SEARCHES_S = 10.0
"""Each reads the key's partition whole."""


@click.group()
def changelog() -> None:
    """List, compact and reset the logs of a topology's stores."""


@changelog.command("ls")
@worker_settings("topology", "changelog")
@json_output
def list_logs(topology: Path, changelog: str, output: Output) -> None:
    """Show every store's log: partitions, records' ends, identity."""
    opened, loaded = open_logs(topology, changelog)
    logs = [_log_document(opened, spec) for spec in loaded.stores.values()]
    output.show({"logs": logs}, _logs_table(logs))
    unsuitable = [log["problem"] for log in logs if log["state"] == "unsuitable"]
    if unsuitable:
        raise ChangelogError(" ".join(unsuitable))


def _log_document(opened: Changelog, spec: StoreSpec) -> dict[str, Any]:
    """One log of ``forebay changelog ls --json``; the end of a partition that cannot be read is null."""
    document = {"store": spec.name, "topic": spec.topic, "partitions": spec.partitions}
    try:
        opened.ensure(spec, create=False)
    except ChangelogUnreachable:
        raise
    except ChangelogError as error:
        state = "missing" if isinstance(error, TopicMissing) else "unsuitable"
        return {**document, "state": state, "end_offsets": None, "identity": None, "problem": str(error)}
    partitions = [TopicPartition(spec.topic, partition) for partition in range(spec.partitions)]
    known = opened.end_offsets(partitions)
    ends, identity = [known.get(tp) for tp in partitions], opened.identity(spec.topic)
    return {**document, "state": "present", "end_offsets": ends, "identity": identity, "problem": None}


def _logs_table(logs: list[dict[str, Any]]) -> Table:
    table = Table()
    for column in ("store", "topic", "partitions", "end offsets", "identity"):
        table.add_column(column, overflow="fold")
    for log in logs:
        ends = ", ".join("?" if end is None else str(end) for end in log["end_offsets"] or ())
        table.add_row(log["store"], log["topic"], str(log["partitions"]), ends, log["identity"] or log["state"])
    return table


@changelog.command("compact")
@worker_settings("topology", "changelog")
@click.argument("store")
@click.option(
    "--min-compaction-lag-ms",
    type=click.IntRange(min=0),
    default=_LIMITS.min_compaction_lag_ms,
    show_default=True,
    help="Records younger than this stay, so that replicas that are behind find a whole history.",
)
@click.option(
    "--delete-retention-ms",
    type=click.IntRange(min=0),
    default=_LIMITS.delete_retention_ms,
    show_default=True,
    help="Tombstones younger than this stay; a worker that was away for longer is rebuilt.",
)
@json_output
def compact(topology: Path, changelog: str, store: str, output: Output, **durations: Any) -> None:
    """Remove from the log of STORE what is no longer needed; younger records and tombstones stay.

    On Kafka the brokers do, but they need to be told what higher orders have superseded in a store with latest_by.
    The options are for SQLite.
    """
    opened, loaded = open_logs(topology, changelog)
    spec = store_spec(loaded, store)
    compactor = opened.compactor(spec)
    if compactor is None:
        raise SettingError(
            "The servers of this changelog compact its topics; on Kafka, see the topic's cleanup.policy and "
            "related settings."
        )
    limits = CompactionLimits(**durations)
    with progress(f"compacting {store}", spec.partitions) as advance:
        removed = compactor.compact(spec, limits, lambda: advance(1))
    document = {"store": store, "topic": spec.topic, "removed_records": removed}
    output.show(document, f"{quantity(removed, 'record')} of {spec.topic} {compactor.compacted}")


@changelog.command("reset")
@worker_settings("topology", "changelog")
@click.argument("store")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_output
def reset(topology: Path, changelog: str, store: str, yes: bool, output: Output) -> None:
    """Empty the log of STORE and give it a new identity; every replica is rebuilt.

    Stop the query that writes it first, and start it from a new checkpoint, or from then on the store contains
    only what changes later.
    """
    opened, loaded = open_logs(topology, changelog)
    spec = _own_spec(loaded, store)
    if not yes:
        _confirm(
            f"This empties {spec.topic}, and with it every replica of {store}; a query that goes on writes only "
            "what changes from now on."
        )
    identity = opened.reset(spec)
    document = {"store": store, "topic": spec.topic, "identity": identity}
    output.show(document, f"{store} is now empty, with the new identity {identity}")


def _confirm(consequence: str) -> None:
    """Ask whether to go on; raises ``click.Abort``, and ``SettingError`` if nobody can answer."""
    try:
        click.confirm(f"{consequence} Continue?", abort=True, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, EOFError):
            print_line("", to_stderr=True)
            raise SettingError(
                "Nobody answered on standard input, so nothing was done. Confirm with --yes."
            ) from None
        raise


@changelog.command("retire-writer")
@worker_settings("topology", "changelog")
@click.argument("store")
@click.argument("writer")
@json_output
def retire_writer(topology: Path, changelog: str, store: str, writer: str, output: Output) -> None:
    """Remove a WRITER of STORE that is gone for good from the store's age."""
    opened, loaded = open_logs(topology, changelog)
    spec = _own_spec(loaded, store)
    opened.retire_writer(spec.topic, writer)
    document = {"store": store, "topic": spec.topic, "writer": writer}
    output.show(document, f"{writer} no longer counts towards the age of {store}")


@changelog.command("erase")
@worker_settings("topology", "changelog")
@click.argument("store")
@click.argument("key")
@click.option("--wait", is_flag=True, help="Return once compaction has removed what the log has of the key.")
@json_output
def erase(topology: Path, changelog: str, store: str, key: str, wait: bool, output: Output) -> None:
    """Delete a KEY that must be forgotten from STORE's log, with all its windows, sessions or versions.

    KEY is written as in a URL's path, without percent signs. Workers delete it once they have applied what this
    appends. The query that writes the store is not told: what its own state still has of the key, it may write
    again.
    """
    opened, loaded = open_logs(topology, changelog)
    spec = _own_spec(loaded, store)
    opened.ensure(spec, create=False)
    plain = spec.key_codec.from_text(key.encode())
    erased = {tp: _erased(opened, spec, tp, plain) for tp in _may_have(spec, plain)}
    entries = sum(count for count, _ in erased.values())
    ends = {tp: end for tp, (count, end) in erased.items() if count}
    document = {
        "store": store,
        "topic": spec.topic,
        "erased_entries": entries,
        "next_offsets": {str(tp.partition): end for tp, end in ends.items()},
    }
    if wait:
        _wait_until_gone(opened, spec, plain, ends)
    lines = _erasure_text(entries, ends, waited=wait) if ends else [f"the log of {store} has no value of this key"]
    output.show(document, *lines)


def _erasure_text(entries: int, ends: Mapping[TopicPartition, int], *, waited: bool) -> list[str]:
    until = ", ".join(f"offset {end} of partition {tp.partition}" for tp, end in ends.items())
    gone = "is gone from the log" if waited else f"is gone from the log once compaction has passed {until}"
    return [
        f"{quantity(entries, 'tombstone')} appended: workers that have applied {until} have forgotten the key",
        f"what it was {gone}; copies that others made of the log are not touched",
        "Spark's state still has the key, unless it has expired there, and the query may write it again",
    ]


def _may_have(spec: StoreSpec, plain: bytes) -> list[TopicPartition]:
    """The partitions in which a key may be."""
    known = spec.stream_partitioner is not None and not spec.accept_misplaced
    partitions = [spec.partition_of(plain)] if known else range(spec.partitions)
    return [TopicPartition(spec.topic, partition) for partition in partitions]


def _erased(opened: Changelog, spec: StoreSpec, tp: TopicPartition, plain: bytes) -> tuple[int, int]:
    """Append a tombstone for each entry of a key that a partition has; returns how many, and the next offset."""
    found: dict[tuple[bytes, int], bool] = {}
    for record in _records_of(opened, spec, tp, plain):
        _, key, value, timestamp_ms, _ = record
        # A version is replaced by a deletion of the same time.
        found[key, timestamp_ms if spec.store_kind.keeps_versions else 0] = value is not None
    entries = [entry for entry, has_value in found.items() if has_value]
    return len(entries), opened.append_deletions(tp, entries) if entries else 0


def _records_of(opened: Changelog, spec: StoreSpec, tp: TopicPartition, plain: bytes) -> Iterator[Record]:
    """The records of a key in a partition."""
    split = spec.stored_keys.split_changelog
    with contextlib.closing(opened.consumer(replay=True)) as consumer:
        for batch in batches_to_end(consumer, tp):
            for record in batch.records:
                # Those that do not fit the store's kind are of no key.
                with contextlib.suppress(ValueError):
                    if plain in record[1] and not record[4] and split(record[1], record[3]).plain == plain:
                        yield record


def _wait_until_gone(opened: Changelog, spec: StoreSpec, plain: bytes, ends: dict[TopicPartition, int]) -> None:
    left = dict(ends)
    while left:
        for tp, end in list(left.items()):
            values = (one for one in _records_of(opened, spec, tp, plain) if one[0] < end and one[2] is not None)
            if next(values, None) is None:
                del left[tp]
        if left:
            time.sleep(_BETWEEN_SEARCHES_S)


def open_logs(topology: Path, changelog: str) -> tuple[Changelog, Topology]:
    """The changelog and the topology of a command; raises ``ForebayError``, and creates nothing."""
    return open_changelog(changelog, create=False), load_topology(topology)


def store_spec(topology: Topology, store: str) -> StoreSpec:
    """A store of the topology; raises ``SettingError``."""
    if store not in topology.stores:
        raise SettingError(f"There is no store {store!r} in the topology; there are {', '.join(topology.stores)}.")
    return topology.stores[store]


def _own_spec(topology: Topology, store: str) -> StoreSpec:
    """A store whose log forebay may write; raises ``SettingError``."""
    spec = store_spec(topology, store)
    if spec.external:
        raise SettingError(
            f"{store!r} is external: its topic {spec.topic!r} belongs to others, so forebay neither writes to it "
            "nor empties it."
        )
    return spec
