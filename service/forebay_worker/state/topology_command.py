"""``forebay topology diff``: what workers do with their state when a topology is replaced."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from forebay.cli import FILE
from forebay.output import Output, json_output
from forebay.store_spec import SparkState, StoreSpec
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_changelog.topology_command import topology
from forebay_worker.state.relocation_plan import plan_relocation
from forebay_worker.state.reserved_records import difference, store_identity

_OF_THE_LOG = ("partitioner", "window_size_ms", "latest_by")
"""Fields by which the log was written, which no worker checks."""


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


class Outcome(StrEnum):
    """What becomes of one store, the gravest first."""

    REFUSED = "refused"
    """Workers do not start."""
    MISREAD = "misread"
    """Its state is kept, but its log was written otherwise: keys are not found, or times are wrong."""
    REBUILT = "rebuilt"
    """Its state is discarded, and built again from its log."""
    COPIED = "copied"
    """Its state is kept until the tap, which copies the query's whole state again, has replaced it."""
    NEW = "new"
    """It is built from its log."""
    LEFT = "left"
    """Its state stays on disk, unused."""
    MOVED = "moved"
    """Its directories are renamed at the start, and its state is kept."""
    KEPT = "kept"
    """Its state is kept where it is."""


@dataclass(frozen=True)
class StoreOutcome:
    """One store: its outcome with the reason, its ordinals, and the fields that change."""

    store: str
    outcome: Outcome
    partitions: int
    reason: str | None = None
    old_ordinal: int | None = None
    new_ordinal: int | None = None
    changed: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return {**vars(self), "changed": list(self.changed)}


def topology_diff(old: Topology, new: Topology) -> list[StoreOutcome]:
    """The outcome of every store of either topology, the gravest first."""
    if old.application_id != new.application_id:
        return _of_another_application(old, new)
    found = [(task, spec.name) for task in old.tasks for spec in old.stores_of(task)]
    moved = {move.store: move.reason for move in plan_relocation(found, new).moves}
    outcomes = [_outcome(old, new, name, moved.get(name)) for name in {**old.stores, **new.stores}]
    return sorted(outcomes, key=lambda one: list(Outcome).index(one.outcome))


def _outcome(old: Topology, new: Topology, name: str, moved: str | None) -> StoreOutcome:
    before, after = old.stores.get(name), new.stores.get(name)
    ordinals = old.ordinal_by_store.get(name), new.ordinal_by_store.get(name)
    if after is None:
        assert before is not None
        reason = "the topology has no store of this name"
        return StoreOutcome(name, Outcome.LEFT, before.partitions, reason, *ordinals)
    if before is None:
        return StoreOutcome(name, Outcome.NEW, after.partitions, None, *ordinals)
    outcome, why = _verdict(before, after, moved)
    return StoreOutcome(name, outcome, after.partitions, why, *ordinals, _changed(before, after))


def _verdict(before: StoreSpec, after: StoreSpec, moved: str | None) -> tuple[Outcome, str | None]:
    if before.topic == after.topic and before.partitions != after.partitions:
        count = before.partitions
        return Outcome.REFUSED, f"its log has {count} partitions: keep the count, or give it a new name"
    if before.supplier != after.supplier:
        return Outcome.REBUILT, "another supplier does not read its files: remove them first (forebay state rm)"
    other = difference(store_identity("", before, 0), store_identity("", after, 0))
    if other is not None:
        return Outcome.REBUILT, other
    misread = [name for name in _OF_THE_LOG if getattr(before, name) != getattr(after, name)]
    if misread and not after.external:
        return Outcome.MISREAD, f"its log was written with another {' and '.join(misread)}: give it a new name"
    if after.spark_state is not None and before.spark_state != after.spark_state:
        differing = " and ".join(_changed_state(before, after))
        return Outcome.COPIED, f"forebay spark follow copies the query's whole state again, by another {differing}"
    return (Outcome.KEPT, None) if moved is None else (Outcome.MOVED, moved)


def _changed(before: StoreSpec, after: StoreSpec) -> tuple[str, ...]:
    one, other = before.document(), after.document()
    changed = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return (*changed, *_changed_state(before, after))


def _changed_state(before: StoreSpec, after: StoreSpec) -> list[str]:
    """The fields of ``spark_state`` that differ, or itself where only one has it."""
    one, other = before.spark_state, after.spark_state
    if one is None or other is None:
        return [] if one is other else ["spark_state"]
    differing = [item.name for item in fields(SparkState) if getattr(one, item.name) != getattr(other, item.name)]
    return [f"spark_state.{'fields' if name == 'columns' else name}" for name in differing]


def _of_another_application(old: Topology, new: Topology) -> list[StoreOutcome]:
    """Nothing is shared: state directory, group and topics have the application's name."""
    reason = f"the application is {new.application_id!r} instead of {old.application_id!r}"
    return [
        *(
            StoreOutcome(name, Outcome.REBUILT, spec.partitions, reason, None, new.ordinal_by_store[name])
            for name, spec in new.stores.items()
        ),
        *(
            StoreOutcome(name, Outcome.LEFT, spec.partitions, reason, old.ordinal_by_store[name])
            for name, spec in old.stores.items()
            if name not in new.stores
        ),
    ]
