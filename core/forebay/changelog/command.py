"""``forebay changelog``: maintain the logs of a topology's stores by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from forebay.changelog import Changelog, open_changelog
from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.changelog.sqlite.compaction import CompactionLimits
from forebay.cli import worker_settings
from forebay.errors import ChangelogError, ChangelogUnreachable, SettingError, TopicMissing
from forebay.tasks import TopicPartition
from forebay.terminal import terminal
from forebay.topology import StoreSpec, Topology, load_topology

_LIMITS = CompactionLimits()


@click.group()
def changelog() -> None:
    """List, compact and reset the logs of a topology's stores."""


@changelog.command("ls")
@worker_settings("topology", "changelog")
def list_logs(topology: Path, changelog: str) -> None:
    """Show every store's log: partitions, records' ends, identity."""
    opened, loaded = _open(topology, changelog)
    table = Table()
    for column in ("store", "topic", "partitions", "end offsets", "identity"):
        table.add_column(column, overflow="fold")
    unsuitable: list[str] = []
    for spec in loaded.stores.values():
        try:
            opened.ensure(spec, create=False)
        except ChangelogUnreachable:
            raise
        except ChangelogError as error:
            missing = isinstance(error, TopicMissing)
            table.add_row(spec.name, spec.topic, str(spec.partitions), "", "missing" if missing else "unsuitable")
            unsuitable += [] if missing else [str(error)]
            continue
        partitions = [TopicPartition(spec.topic, partition) for partition in range(spec.partitions)]
        ends = opened.end_offsets(partitions)
        unknown = "lost" if isinstance(opened, SqliteChangelog) else "?"
        shown = ", ".join(str(ends.get(tp, unknown)) for tp in partitions)
        table.add_row(spec.name, spec.topic, str(spec.partitions), shown, opened.identity(spec.topic))
    terminal().print(table)
    if unsuitable:
        raise ChangelogError(" ".join(unsuitable))


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
def compact(topology: Path, changelog: str, store: str, **durations: Any) -> None:
    """Remove from the log of STORE what is no longer needed; younger records and tombstones stay."""
    opened, loaded = _open(topology, changelog)
    spec = _spec(loaded, store)
    if not isinstance(opened, SqliteChangelog):
        raise SettingError(
            "Kafka compacts its topics itself; see the topic's cleanup.policy and related settings."
        )
    click.echo(f"{opened.compact(spec, CompactionLimits(**durations))} records removed from {spec.topic}")


@changelog.command("reset")
@worker_settings("topology", "changelog")
@click.argument("store")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def reset(topology: Path, changelog: str, store: str, yes: bool) -> None:
    """Empty the log of STORE and give it a new identity; every replica is rebuilt.

    Stop the query that writes it first, and start it from a new checkpoint, or from then on the store contains
    only what changes later.
    """
    opened, loaded = _open(topology, changelog)
    spec = _spec(loaded, store)
    if spec.external:
        raise SettingError(
            f"{store!r} is external: its topic {spec.topic!r} belongs to others, so forebay does not empty it."
        )
    if not yes:
        click.confirm(
            f"This empties {spec.topic}, and with it every replica of {store}; a query that goes on writes only "
            "what changes from now on. Continue?",
            abort=True,
        )
    identity = opened.reset(spec)
    click.echo(f"{store} is now empty, with the new identity {identity}")


@changelog.command("retire-writer")
@worker_settings("topology", "changelog")
@click.argument("store")
@click.argument("writer")
def retire_writer(topology: Path, changelog: str, store: str, writer: str) -> None:
    """Remove a WRITER of STORE that is gone for good from the store's age."""
    opened, loaded = _open(topology, changelog)
    spec = _spec(loaded, store)
    if spec.external:
        raise SettingError(
            f"{store!r} is external: its topic {spec.topic!r} belongs to others, so forebay writes nothing to it."
        )
    opened.retire_writer(spec.topic, writer)
    click.echo(f"{writer} no longer counts towards the age of {store}")


def _open(topology: Path, changelog: str) -> tuple[Changelog, Topology]:
    return open_changelog(changelog, create=False), load_topology(topology)


def _spec(topology: Topology, store: str) -> StoreSpec:
    if store not in topology.stores:
        raise SettingError(f"There is no store {store!r} in the topology; there are {', '.join(topology.stores)}.")
    return topology.stores[store]
