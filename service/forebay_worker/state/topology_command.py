"""``forebay topology diff``: what workers do with their state when a topology is replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from forebay.cli import FILE
from forebay.output import Output, json_output
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_changelog.topology_command import topology
from forebay_worker.state.topology_diff import Outcome, topology_diff


@topology.command("diff")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@json_output
def diff(old: Path, new: Path, output: Output) -> None:
    """Show what becomes of each store's state when workers with the topology OLD start with NEW.

    Exit status 1 if a store is refused or misread.
    """
    before, after = load_topology(old), load_topology(new)
    stores = [outcome.document() for outcome in topology_diff(before, after)]
    document = {"old": _named(before), "new": _named(after), "stores": stores}
    same = before.fingerprint == after.fingerprint
    summary = (
        f"The fingerprint stays {after.fingerprint}."
        if same
        else f"The fingerprint changes from {before.fingerprint} to {after.fingerprint}. While workers with both "
        "run, the leader assigns tasks to those with its own."
    )
    output.show(document, _table(stores), summary)
    if any(store["outcome"] in (Outcome.REFUSED, Outcome.MISREAD) for store in stores):
        sys.exit(1)


def _named(one: Topology) -> dict[str, str]:
    return {"application_id": one.application_id, "fingerprint": one.fingerprint}


def _table(stores: list[dict[str, Any]]) -> Table:
    table = Table()
    for column in ("store", "outcome", "partitions", "ordinal", "changed", "why"):
        table.add_column(column, overflow="fold")
    for store in stores:
        ordinals = [str(store[name]) for name in ("old_ordinal", "new_ordinal") if store[name] is not None]
        table.add_row(
            store["store"],
            store["outcome"],
            str(store["partitions"]),
            " → ".join(dict.fromkeys(ordinals)),
            ", ".join(store["changed"]),
            store["reason"] or "",
        )
    return table
