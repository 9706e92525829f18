"""``forebay state``: show, move and remove what a stopped worker keeps on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from rich.table import Table

from forebay.cli import worker_settings
from forebay.errors import ConfigurationError
from forebay.tasks import TaskId, TopicPartition
from forebay.terminal import terminal
from forebay.topology import Topology, load_topology
from forebay_worker.state.checkpoint import CheckpointFile, CheckpointFileError
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.inspection import read_content
from forebay_worker.state.layout import SET_ASIDE, store_path
from forebay_worker.state.relocate import UnfinishedMove, in_flight, plan_for, relocate, settle
from forebay_worker.state.relocation import Plan, StoreContent, StoreOnDisk


def _task(ctx: click.Context, param: click.Parameter, value: str) -> TaskId:
    try:
        return TaskId.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


@click.group()
def state() -> None:
    """Show, move and remove the stores on this disk; the worker that owns them must be stopped."""


@state.command()
@worker_settings("topology", "state_dir")
def ls(topology: Path, state_dir: Path) -> None:
    """List every store found, its committed offset, and whether it lies where the topology expects it."""
    with _opened(topology, state_dir) as (directory, expected):
        found = list(directory.stores_on_disk())
        contents = {on_disk: read_content(directory.store_path(*on_disk)) for on_disk in found}
        plan = plan_for(directory, expected)
        _print(_stores_table(directory.path, contents, expected, plan))
        aside = directory.set_asides()
        if aside:
            _print(_aside_table(directory.path / SET_ASIDE, aside))
        _print_pending(in_flight(directory.path))


@state.command(name="relocate")
@worker_settings("topology", "state_dir")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
def relocate_command(topology: Path, state_dir: Path, dry_run: bool) -> None:
    """Move every store to its ordinal in the topology; nothing is ever overwritten."""
    with _opened(topology, state_dir) as (directory, expected):
        if dry_run:
            _print_pending(in_flight(directory.path))
            plan = plan_for(directory, expected)
        else:
            done = relocate(directory, expected)
            plan = done.plan
            if done.settled is not None:
                _print(f"Finished the move of {done.settled.source} to {done.settled.target}.")
        if plan.moves or plan.left:
            _print(_plan_table(plan))
        aside = sum(move.target is None for move in plan.moves)
        counts = f"{len(plan.moves) - aside} relocated, {aside} set aside, {len(plan.left)} left"
        _print(f"Dry run, nothing was moved: would be {counts}." if dry_run else f"Stores: {counts}.")


@state.command()
@worker_settings("topology", "state_dir")
@click.argument("task", callback=_task)
@click.argument("store", required=False)
def rm(topology: Path, state_dir: Path, task: TaskId, store: str | None) -> None:
    """Remove a STORE of a TASK, or all of them, set-aside ones too; the worker rebuilds what it needs from the
    log."""
    with _opened(topology, state_dir) as (directory, expected):
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
            _print(f"Removed {store_path(task, name)}.")


@contextmanager
def _opened(topology: Path, state_dir: Path) -> Iterator[tuple[StateDirectory, Topology]]:
    """The state directory, locked; raises ``StateDirectoryLocked`` while a worker runs on it."""
    expected = load_topology(topology)
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


def _stores_table(path: Path, contents: dict[StoreOnDisk, StoreContent], expected: Topology, plan: Plan) -> Table:
    places = {(move.source, move.store): _place(move.target) for move in plan.moves}
    places |= {(left.task, left.store): left.reason for left in plan.left}
    table = _table(f"stores in {path}", "task", "store", "log", "committed offset", "place")
    for (task, store), content in contents.items():
        known = content.identity or expected.stores.get(store)
        offset = content.offsets.get(TopicPartition(known.topic, task.partition)) if known else None
        table.add_row(
            str(task),
            store,
            content.identity.log if content.identity else "?",
            "?" if offset is None else f"{offset:,}",
            places.get((task, store), "right"),
        )
    return table


def _aside_table(path: Path, aside: list[tuple[TaskId, str, Path]]) -> Table:
    title = f"set aside in {path}, removed once the store is rebuilt or by `forebay state rm TASK STORE`"
    table = _table(title, "task", "store", "directory")
    for task, store, directory in aside:
        table.add_row(str(task), store, directory.name)
    return table


def _plan_table(plan: Plan) -> Table:
    table = _table("relocation", "task", "store", "to", "why")
    for move in plan.moves:
        table.add_row(str(move.source), move.store, str(move.target or "set aside"), move.reason)
    for left in plan.left:
        table.add_row(str(left.task), left.store, "left", left.reason)
    return table


def _place(target: TaskId | None) -> str:
    return "would be set aside" if target is None else f"belongs to {target}"


def _print_pending(pending: UnfinishedMove | None) -> None:
    if pending is not None:
        _print(f"Unfinished, and finished first: the move of {pending.source} to {pending.target}.")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column == "committed offset" else "left")
    return table


def _print(shown: Table | str) -> None:
    terminal().print(shown, soft_wrap=isinstance(shown, str))
