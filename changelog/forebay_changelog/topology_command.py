"""``forebay topology``: shows a topology, and creates the topics that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from forebay.cli import worker_settings
from forebay.errors import TopicMissing
from forebay.output import Output, json_output, quantity
from forebay.store_spec import StoreSpec
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_changelog.base import Changelog, open_changelog


@click.group()
def topology() -> None:
    """Check a topology, and create the topics of its stores."""


@topology.command("show")
@worker_settings("topology")
@json_output
def show(topology: Path, output: Output) -> None:
    """Show how forebay reads every store, or say what is wrong."""
    loaded = load_topology(topology)
    output.show(topology_document(loaded), _table(loaded))


def topology_document(topology: Topology) -> dict[str, Any]:
    """What ``forebay topology show --json`` prints."""
    return {
        "application_id": topology.application_id,
        "fingerprint": topology.fingerprint,
        "subtopologies": [
            {
                "ordinal": sub.ordinal,
                "name": sub.name,
                "partitions": sub.partitions,
                "stores": [spec.document() for spec in sub.stores],
            }
            for sub in topology.subtopologies
        ],
    }


def _table(loaded: Topology) -> Table:
    table = Table(title=f"{loaded.application_id}, fingerprint {loaded.fingerprint}", title_justify="left")
    for column in ("sub-topology", "partitions", "store", "kind", "key", "value", "partitioner", "topic", "more"):
        table.add_column(column, overflow="fold")
    for sub in loaded.subtopologies:
        for spec in sub.stores:
            place = f"{sub.ordinal} {sub.name}"
            row = (spec.name, spec.kind, spec.key, spec.value, spec.partitioner, spec.topic, _more(spec))
            table.add_row(place, str(sub.partitions), *row)
    return table


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
@json_output
def apply(topology: Path, changelog: str, output: Output) -> None:
    """Create missing topics, the workers' own too; refuse unsuitable ones, with a remedy.

    Topics of stores with ttl_ms get the retention that deletes what has expired.
    """
    loaded = load_topology(topology)
    opened = open_changelog(changelog)
    logs = [_ensured(opened, spec) for spec in loaded.stores.values()]
    of_group = opened.ensure_group(loaded.application_id)
    lines = [
        f"{log['store']}: {log['topic']}, {quantity(log['partitions'], 'partition')}, "
        f"{'created' if log['created'] else 'exists'}{', retention set' if log['retention_set'] else ''}"
        for log in logs
    ]
    if of_group is not None:
        lines.append(f"the workers' assignments: {of_group}, 1 partition")
    document = {"application_id": loaded.application_id, "logs": logs, "group_topic": of_group}
    output.show(document, *lines)


def _ensured(opened: Changelog, spec: StoreSpec) -> dict[str, Any]:
    """A store's log, which is created if it is missing; raises as ``Changelog.ensure``."""
    created = retention_set = False
    try:
        retention_set = opened.forget_expired(spec)
        opened.ensure(spec, create=False)
    except TopicMissing:
        created = True
    opened.ensure(spec)
    return {
        "store": spec.name,
        "topic": spec.topic,
        "partitions": spec.partitions,
        "created": created,
        "retention_set": retention_set,
    }
