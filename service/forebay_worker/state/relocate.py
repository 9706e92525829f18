"""Carries out relocation (KIP-816), and resumes it if a process was killed in the middle.

A rename is atomic, so it suffices to move a store without a line in ``.checkpoint``: a start after a kill finds it
in one place or the other and plans again. A file system may refuse a rename. Then a copy takes its name once it is
complete, so that a start after a kill may find two, and keeps the one in place. A store with a line could lose the
line on the way, or the line could arrive first and the store resume, empty, at an offset it does not have. Such a
move is written to a journal before its first step, and any journalled move is finished before anything else, under
any topology.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import ConfigurationError, ForebayError
from forebay.file_access import read_regular
from forebay.task_ids import TopicPartition
from forebay.topology import Topology
from forebay_worker.state import layout
from forebay_worker.state.checkpoint_file import CheckpointFile, CheckpointFileError
from forebay_worker.state.directory import StateDirectory, move_directory
from forebay_worker.state.fsync import remove_durably, sync_directories, write_durably
from forebay_worker.state.inspection import read_content
from forebay_worker.state.relocation_plan import (
    Move,
    Plan,
    collisions,
    plan_relocation,
)

log = logging.getLogger(__name__)

JOURNAL_NAME = ".relocation.json"

Step = Callable[[str], None]
"""Called after each step with its name; if it raises, everything stays as a kill would leave it."""


class RelocationError(ForebayError):
    """A store cannot be moved; it is still in its old place, and the next start continues from there."""


class StateMisplaced(ConfigurationError):
    """Stores are under other ordinals than the topology's, and relocation is off."""


@dataclass(frozen=True)
class UnfinishedMove:
    """The one move under way, as journalled; the paths are the store's directories."""

    source: Path
    target: Path
    topic_partition: TopicPartition
    offset: int | None
    """From the store's line in the source task's ``.checkpoint``; None without a line, in which case it is never
    journalled."""
    moment_epoch_ms: float | None = None
    """When that line was written: moving must not make it look younger."""


@dataclass(frozen=True)
class Relocation:
    """What was done: the move that an earlier process had begun, if any, and the plan."""

    settled: UnfinishedMove | None
    plan: Plan


def prepare_state(directory: StateDirectory, topology: Topology, automatic: bool) -> None:
    """Move every store to its ordinal, before anything opens one; stores left or set aside are logged.

    ``automatic`` is the setting ``automatic_state_relocation``: without it nothing is moved. Raises
    ``StateMisplaced`` if something would have to be, ``RelocationError`` if the disk refuses.
    """
    if not automatic:
        refuse_misplaced(directory, topology)
        return
    done = relocate(directory, topology)
    for move in done.plan.moves:
        log.log(logging.INFO if move.target else logging.WARNING, "relocated %s", move)
    for left in done.plan.left:
        log.warning("%s", left)


def refuse_misplaced(directory: StateDirectory, topology: Topology) -> None:
    """Raise ``StateMisplaced``, with the plan, if a store is not at its ordinal."""
    moves = [str(move) for move in plan_for(directory, topology).moves]
    pending = in_flight(directory.path)
    if pending is not None:
        moves.insert(0, f"{pending.source} → {pending.target}: started but not finished")
    if moves:
        raise StateMisplaced(
            f"The state in {directory.path} is not where the topology expects it, and "
            "automatic_state_relocation is off. Turn it on, or run `forebay state relocate`, which will do:\n  "
            + "\n  ".join(moves)
        )


def plan_for(directory: StateDirectory, topology: Topology) -> Plan:
    """The plan for what is on disk now; opens stores, read-only, only if two conflict."""
    found = list(directory.stores_on_disk())
    contents = {on_disk: read_content(directory.store_path(*on_disk)) for on_disk in collisions(found, topology)}
    return plan_relocation(found, topology, contents)


def relocate(directory: StateDirectory, topology: Topology, step: Step = lambda name: None) -> Relocation:
    """Finish the move in flight, if there is one, then move every store to its ordinal; nothing is overwritten.

    Nothing may have a store open. Raises ``RelocationError`` if the disk refuses.
    """
    try:
        settled = settle(directory, step)
        plan = plan_for(directory, topology)
        unsynced: set[Path] = set()
        for move in plan.moves:
            flight = _prepare(directory.path, move)
            if flight.offset is None:
                unsynced |= _rename(flight)
                step("renamed")
                continue
            # A power failure must not keep the journal but undo an earlier rename.
            sync_directories(unsynced)
            unsynced.clear()
            _write_journal(directory.path, flight)
            step("journal written")
            _finish(directory.path, flight, step)
        sync_directories(unsynced)
        step("directories synced")
        for move in plan.moves:
            directory.remove_if_empty(move.source)
    except OSError as error:
        raise RelocationError(
            f"The stores in {directory.path} cannot be relocated: {error}. Make sure that there is free space and "
            "that this user may write there, and start again; nothing is lost, it continues where it stopped."
        ) from error
    return Relocation(settled, plan)


def in_flight(state_path: Path) -> UnfinishedMove | None:
    """The move that a killed process left unfinished."""
    path = state_path / JOURNAL_NAME
    try:
        document = json.loads(read_regular(path))
        return UnfinishedMove(
            _within(state_path, document["source"]),
            _within(state_path, document["target"]),
            TopicPartition(document["topic"], document["partition"]),
            document["offset"],
            document.get("moment_epoch_ms"),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RelocationError(
            f"{path} is not a relocation journal ({error!r}). Remove it; at worst one store that does not manage "
            "its offsets is rebuilt from the log."
        ) from None


def _within(state_path: Path, place: str) -> Path:
    """A place of the journal; raises ``ValueError`` if it leads out of the state directory."""
    if Path(place).is_absolute() or ".." in Path(place).parts:
        raise ValueError(f"{place!r} is not in {state_path}")
    return state_path / place


def settle(directory: StateDirectory, step: Step = lambda name: None) -> UnfinishedMove | None:
    """Finish the move in flight; anything that opens or removes a store must call this first."""
    flight = in_flight(directory.path)
    if flight is not None:
        log.warning("finishing the relocation of %s to %s", flight.source, flight.target)
        _finish(directory.path, flight, step)
    return flight


def _prepare(state_path: Path, move: Move) -> UnfinishedMove:
    source = state_path / layout.store_path(move.source, move.store)
    if move.target is None:
        target = state_path / layout.new_set_aside_path(move.source, move.store)
    else:
        target = state_path / layout.store_path(move.target, move.store)
        # A line that outlived its store does not belong to the arriving store.
        if _line(target, move.topic_partition) is not None:
            _forget_line(target, move.topic_partition)
    line = _line(source, move.topic_partition)
    moment = None if line is None else _checkpoint(source).moment_epoch_ms()
    return UnfinishedMove(source, target, move.topic_partition, line, moment)


def _finish(state_path: Path, flight: UnfinishedMove, step: Step) -> None:
    """All steps of a move; steps that an earlier process completed are repeated, without effect."""
    _forget_line(flight.source, flight.topic_partition)
    step("line removed")
    moved = not flight.source.exists()
    if not moved and not os.path.lexists(flight.target):
        _rename(flight)
        step("renamed")
        moved = True
    # Includes what an earlier process may have created but not synced.
    sync_directories({flight.source.parent, *flight.target.parents[:3]})
    step("directories synced")
    if not layout.is_set_aside(flight.target):
        # If someone has put a store in either place meanwhile, it is unknown whose the line is: it is dropped.
        if moved and flight.target.exists() and flight.offset is not None:
            _add_line(flight.target, flight.topic_partition, flight.offset, flight.moment_epoch_ms)
        else:
            _forget_line(flight.target, flight.topic_partition)
        step("line added")
    remove_durably(state_path / JOURNAL_NAME)
    step("journal removed")


def _rename(flight: UnfinishedMove) -> set[Path]:
    """Move the directory; returns the directories that must be synced."""
    changed = {flight.source.parent, flight.target.parent}
    if not flight.target.parent.exists():
        flight.target.parent.mkdir(parents=True)
        changed.update(flight.target.parents[1:3])
    # A rename would silently replace an empty directory.
    if os.path.lexists(flight.target):
        raise RelocationError(f"{flight.source} belongs at {flight.target}, which exists. Move either away.")
    move_directory(flight.source, flight.target)
    return changed


def _write_journal(state_path: Path, flight: UnfinishedMove) -> None:
    document = {
        "source": str(flight.source.relative_to(state_path)),
        "target": str(flight.target.relative_to(state_path)),
        **flight.topic_partition._asdict(),
        "offset": flight.offset,
        "moment_epoch_ms": flight.moment_epoch_ms,
    }
    write_durably(state_path / JOURNAL_NAME, json.dumps(document) + "\n")


def _line(store_path: Path, topic_partition: TopicPartition) -> int | None:
    """A store's line in its task's ``.checkpoint``; none in a malformed one, which costs a rebuild anyway."""
    try:
        return _checkpoint(store_path).read().get(topic_partition)
    except CheckpointFileError as error:
        log.warning("%s", error)
        return None


def _forget_line(store_path: Path, topic_partition: TopicPartition) -> None:
    checkpoint = _checkpoint(store_path)
    with suppress(CheckpointFileError):
        if checkpoint.path.parent.exists():
            checkpoint.remove(topic_partition)


def _add_line(
    store_path: Path, topic_partition: TopicPartition, offset: int, moment_epoch_ms: float | None
) -> None:
    checkpoint = _checkpoint(store_path)
    try:
        checkpoint.add(topic_partition, offset, moment_epoch_ms)
    except CheckpointFileError as error:
        log.warning("%s", error)


def _checkpoint(store_path: Path) -> CheckpointFile:
    return CheckpointFile.of(store_path.parents[1])
