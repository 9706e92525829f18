"""``forebay topology``: shows a topology, and creates the topics that it needs."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from forebay.changelog.urls import open_changelog
from forebay.cli import worker_settings
from forebay.terminal import terminal
from forebay.topology import StoreSpec, load_topology


@click.group()
def topology() -> None:
    """Check a topology, and create the topics of its stores."""


@topology.command("show")
@worker_settings("topology")
def show(topology: Path) -> None:
    """Show how forebay reads every store, or say what is wrong."""
    loaded = load_topology(topology)
    table = Table(title=f"{loaded.application_id}, fingerprint {loaded.fingerprint}", title_justify="left")
    for column in ("sub-topology", "partitions", "store", "kind", "key", "value", "partitioner", "topic", "more"):
        table.add_column(column, overflow="fold")
    for sub in loaded.subtopologies:
        for spec in sub.stores:
            place = f"{sub.ordinal} {sub.name}"
            row = (spec.name, spec.kind, spec.key, spec.value, spec.partitioner, spec.topic, _more(spec))
            table.add_row(place, str(sub.partitions), *row)
    terminal().print(table)


def _more(spec: StoreSpec) -> str:
    """The other fields of a store's table, or those its kind needs."""
    document = spec.document()
    named = ("store", "name", "kind", "key", "value", "partitioner", "topic", "partitions")
    usual = StoreSpec("", spec.kind, "", "", "", "", 1).document()
    return ", ".join(
        f"{name} = {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in document.items()
        if name not in named and value != usual.get(name)
    )


@topology.command("apply")
@worker_settings("topology", "changelog")
def apply(topology: Path, changelog: str) -> None:
    """Create missing topics, the workers' own too; refuse unsuitable ones, with a remedy."""
    loaded = load_topology(topology)
    opened = open_changelog(changelog)
    for spec in loaded.stores.values():
        opened.ensure(spec)
        click.echo(f"{spec.name}: {spec.topic}, {spec.partitions} partitions")
    of_group = opened.ensure_group(loaded.application_id)
    if of_group is not None:
        click.echo(f"the workers' assignments: {of_group}, 1 partition")
