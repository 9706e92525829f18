"""``forebay state``: show, move and remove what a stopped worker keeps on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table

from forebay.cli import worker_settings
from forebay.errors import ConfigurationError
from forebay.output import Output, json_output, progress
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import load_topology
from forebay_worker.state.checkpoint_file import CheckpointFile, CheckpointFileError
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.inspection import read_content
from forebay_worker.state.layout import SET_ASIDE, processes_with_state, state_dir_of, store_path
from forebay_worker.state.relocate import UnfinishedMove, in_flight, plan_for, relocate, settle
from forebay_worker.state.relocation_plan import Left, Move, Plan, StoreContent, StoreOnDisk


def _task(ctx: click.Context, param: click.Parameter, value: str) -> TaskId:
    try:
        return TaskId.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


_process = click.option(
    "--process",
    type=click.IntRange(min=0),
    default=0,
    help="Which of the worker's processes, if it has several, from 0 on.",
)


@click.group()
def state() -> None:
    """Show, move and remove the stores on this disk; the worker that owns them must be stopped."""


@state.command()
@worker_settings("topology", "state_dir")
@_process
@json_output
def ls(topology: Path, state_dir: Path, process: int, output: Output) -> None:
    """List every store found, its committed offset, and whether it lies where the topology expects it."""
    with _opened(topology, state_dir, process) as (directory, expected):
        found = list(directory.stores_on_disk())
        contents = {on_disk: read_content(directory.store_path(*on_disk)) for on_disk in found}
        stores = _store_documents(contents, expected, plan_for(directory, expected))
        aside = [
            {"task": str(task), "store": store, "directory": path.name}
            for task, store, path in directory.set_asides()
        ]
        pending = in_flight(directory.path)
        processes = processes_with_state(state_dir, expected.application_id)
        document = {
            "directory": str(directory.path),
            "stores": stores,
            "set_aside": aside,
            "unfinished": _flight_document(pending),
            "processes": processes,
        }
        shown: list[RenderableType] = [_stores_table(directory.path, stores)]
        shown += [_aside_table(directory.path / SET_ASIDE, aside)] if aside else []
        output.show(document, *shown, *_pending_lines(pending), *_others_lines(processes, process))


@state.command(name="relocate")
@worker_settings("topology", "state_dir")
@_process
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@json_output
def relocate_command(topology: Path, state_dir: Path, process: int, dry_run: bool, output: Output) -> None:
    """Move every store to its ordinal in the topology; nothing is ever overwritten."""
    with _opened(topology, state_dir, process) as (directory, expected):
        if dry_run:
            plan, flight = plan_for(directory, expected), in_flight(directory.path)
            before = _pending_lines(flight)
        else:
            with progress("steps of moving stores") as advance:
                done = relocate(directory, expected, lambda step: advance(1))
            plan, flight = done.plan, done.settled
            before = [f"Finished the move of {flight.source} to {flight.target}."] if flight else []
    document = {
        "dry_run": dry_run,
        "unfinished": _flight_document(flight),
        "moves": [_move_document(move) for move in plan.moves],
        "left": [_left_document(left) for left in plan.left],
    }
    aside = sum(move.target is None for move in plan.moves)
    moved = f"{len(plan.moves) - aside} {'would be relocated' if dry_run else 'relocated'}"
    counts = f"{moved}, {aside} set aside, {len(plan.left)} left."
    summary = f"Dry run, nothing was moved: {counts}" if dry_run else f"Stores: {counts}"
    tables = [_plan_table(plan)] if plan.moves or plan.left else []
    output.show(document, *before, *tables, summary)


@state.command()
@worker_settings("topology", "state_dir")
@_process
@click.argument("task", callback=_task)
@click.argument("store", required=False)
@json_output
def rm(topology: Path, state_dir: Path, process: int, task: TaskId, store: str | None, output: Output) -> None:
    """Remove a STORE of a TASK, or all of them, set-aside ones too; the worker rebuilds what it needs from the
    log."""
    with _opened(topology, state_dir, process) as (directory, expected):
        settle(directory)
        here = [name for found, name in directory.stores_on_disk() if found == task]
        aside = [name for found, name, _ in directory.set_asides() if found == task]
        going = sorted({name for name in [*here, *aside] if store in (None, name)})
        if not going:
            raise ConfigurationError(
                f"Task {task} has no store{'' if store is None else f' {store!r}'} in {directory.path}. "
                "`forebay state ls` lists what is there."
            )
        staying = {expected.stores[name].topic for name in here if name not in going and name in expected.stores}
        if here:
            _keep_lines(CheckpointFile.of(directory.path / str(task)), staying)
        for name in going:
            directory.delete_store(task, name)
            directory.discard_set_aside(name, task.partition)
    removed = [{"task": str(task), "store": name} for name in going]
    output.show({"removed": removed}, *(f"Removed {store_path(task, name)}." for name in going))


@contextmanager
def _opened(topology: Path, worker_state_dir: Path, process: int) -> Iterator[tuple[StateDirectory, Topology]]:
    """The state directory of a process, locked; raises ``StateDirectoryLocked`` while the worker runs."""
    expected = load_topology(topology)
    state_dir = state_dir_of(worker_state_dir, process)
    path = state_dir / expected.application_id
    if not path.is_dir():
        raise ConfigurationError(
            f"There is no state of application {expected.application_id!r} in {state_dir}: {path} does not exist. "
            "Give the worker's --state-dir."
        )
    directory = StateDirectory(state_dir, expected.application_id)
    try:
        yield directory, expected
    finally:
        directory.close()


def _keep_lines(checkpoint: CheckpointFile, topics: set[str]) -> None:
    """Drop every line but those of these topics, so that a new store finds none."""
    with suppress(CheckpointFileError):
        checkpoint.keep(topics)


def _store_documents(
    contents: dict[StoreOnDisk, StoreContent], expected: Topology, plan: Plan
) -> list[dict[str, Any]]:
    planned = {(move.source, move.store): _move_document(move) for move in plan.moves}
    planned |= {(left.task, left.store): _left_document(left) for left in plan.left}
    documents = []
    for (task, store), content in contents.items():
        known = content.identity or expected.stores.get(store)
        offset = content.offsets.get(TopicPartition(known.topic, task.partition)) if known else None
        documents.append(
            {
                "task": str(task),
                "store": store,
                "log": content.identity.log if content.identity else None,
                "committed_offset": offset,
                "place": "right",
                "target": str(task),
                "reason": None,
                **planned.get((task, store), {}),
            }
        )
    return documents


def _stores_table(path: Path, stores: list[dict[str, Any]]) -> Table:
    table = _table(f"stores in {path}", "task", "store", "log", "committed offset", "place")
    for store in stores:
        offset = "?" if store["committed_offset"] is None else f"{store['committed_offset']:,}"
        table.add_row(store["task"], store["store"], store["log"] or "?", offset, _place(store))
    return table


def _aside_table(path: Path, aside: list[dict[str, Any]]) -> Table:
    title = f"set aside in {path}, removed once the store is rebuilt or by `forebay state rm TASK STORE`"
    table = _table(title, "task", "store", "directory")
    for store in aside:
        table.add_row(store["task"], store["store"], store["directory"])
    return table


def _move_document(move: Move) -> dict[str, Any]:
    place, target = ("aside", None) if move.target is None else ("elsewhere", str(move.target))
    return {
        "task": str(move.source),
        "store": move.store,
        "place": place,
        "target": target,
        "reason": move.reason,
    }


def _left_document(left: Left) -> dict[str, Any]:
    return {
        "task": str(left.task),
        "store": left.store,
        "place": "unknown",
        "target": None,
        "reason": left.reason,
    }


def _plan_table(plan: Plan) -> Table:
    table = _table("relocation", "task", "store", "to", "why")
    for move in plan.moves:
        table.add_row(str(move.source), move.store, str(move.target or "set aside"), move.reason)
    for left in plan.left:
        table.add_row(str(left.task), left.store, "left", left.reason)
    return table


def _place(store: dict[str, Any]) -> str:
    texts = {"right": "right", "aside": "would be set aside", "elsewhere": f"belongs to {store['target']}"}
    return texts.get(store["place"], str(store["reason"]))


def _others_lines(processes: list[int], process: int) -> list[str]:
    """What to say of the worker's other processes."""
    others = ", ".join(str(number) for number in processes if number != process)
    return [f"State of other processes of this worker, for --process: {others}."] if others else []


def _pending_lines(pending: UnfinishedMove | None) -> list[str]:
    if pending is None:
        return []
    return [f"Unfinished, and finished first: the move of {pending.source} to {pending.target}."]


def _flight_document(flight: UnfinishedMove | None) -> dict[str, Any] | None:
    return None if flight is None else {"source": str(flight.source), "target": str(flight.target)}


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column == "committed offset" else "left")
    return table
