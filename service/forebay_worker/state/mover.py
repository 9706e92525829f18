"""Carries out relocation (KIP-816), and takes it up again where a process was killed in the middle.

A rename is atomic, so a store without a line in ``.checkpoint`` is moved by that alone: a start after a kill finds
it in the one place or the other and plans anew. A store with a line could lose the line on the way, or have it
arrive first and resume, empty, at an offset it does not have. Such a move is written to a journal before its
first step, and whatever is in the journal is finished before anything else, under whatever topology.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import ConfigurationError, ForebayError
from forebay.tasks import TopicPartition
from forebay.topology import Topology
from forebay_worker.state.checkpoint import CheckpointError, CheckpointFile
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.durable import remove_durably, sync_directory, write_durably
from forebay_worker.state.inspection import read_content
from forebay_worker.state.relocation import (
    SET_ASIDE,
    Move,
    Plan,
    collisions,
    plan_relocation,
    relative_path,
)

JOURNAL_NAME = ".relocation.json"

Step = Callable[[str], None]
"""Called after each step with its name; where it raises, everything stays as a kill would leave it."""

log = logging.getLogger(__name__)


class RelocationError(ForebayError):
    """A store cannot be moved; it is where it was, and the next start goes on from there."""


class StateMisplaced(ConfigurationError):
    """Stores lie under other ordinals than the topology's, and relocation is off."""


@dataclass(frozen=True)
class InFlight:
    """The one move under way, as the journal holds it; the paths are those of the store's directories."""

    source: Path
    target: Path
    topic_partition: TopicPartition
    offset: int | None
    """Of the store's line in the source task's ``.checkpoint``; None without a line, and then never journalled."""
    moment_epoch_ms: float | None = None
    """When that line was written: it must not look younger for having moved."""


@dataclass(frozen=True)
class Relocation:
    """What was done: the move that an earlier process had begun, if any, and the plan."""

    settled: InFlight | None
    plan: Plan


def prepare_state(directory: StateDirectory, topology: Topology, automatic: bool) -> None:
    """Bring every store to its ordinal, before anything opens one; what is left or set aside is logged.

    ``automatic`` is the setting ``automatic_state_relocation``: without it nothing is moved. Raises
    ``StateMisplaced`` if something would have to be, ``RelocationError`` where the disk refuses.
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
    """Raise ``StateMisplaced``, with the plan, where a store is not at its ordinal."""
    moves = [str(move) for move in plan_for(directory, topology).moves]
    pending = in_flight(directory.path)
    if pending is not None:
        moves.insert(0, f"{pending.source} → {pending.target}: was begun and not finished")
    if moves:
        raise StateMisplaced(
            f"The state in {directory.path} does not lie where the topology expects it, and "
            "automatic_state_relocation is off. Turn it on, or run `forebay state relocate`, which will do:\n  "
            + "\n  ".join(moves)
        )


def plan_for(directory: StateDirectory, topology: Topology) -> Plan:
    """The plan for what is on disk now; opens stores, read-only, only where two are in each other's way."""
    found = list(directory.stores_on_disk())
    contents = {on_disk: read_content(directory.store_path(*on_disk)) for on_disk in collisions(found, topology)}
    return plan_relocation(found, topology, contents)


def relocate(directory: StateDirectory, topology: Topology, step: Step = lambda name: None) -> Relocation:
    """Finish the move in flight, if there is one, then move every store to its ordinal; nothing is overwritten.

    Nothing may have a store open. Raises ``RelocationError`` where the disk refuses.
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
            # A power failure must not leave the journal and undo a rename that came before it.
            _sync(unsynced)
            unsynced.clear()
            _write_journal(directory.path, flight)
            step("journal written")
            _finish(directory.path, flight, step)
        _sync(unsynced)
        step("directories synced")
        for move in plan.moves:
            _remove_empty(directory.path / str(move.source))
    except OSError as error:
        raise RelocationError(
            f"The stores in {directory.path} cannot be relocated: {error}. See that there is room and that this "
            "user may write there, and start again; nothing is lost, it goes on where it stopped."
        ) from error
    return Relocation(settled, plan)


def in_flight(state_path: Path) -> InFlight | None:
    """The move that a killed process has left unfinished."""
    path = state_path / JOURNAL_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return InFlight(
            state_path / document["source"],
            state_path / document["target"],
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


def settle(directory: StateDirectory, step: Step = lambda name: None) -> InFlight | None:
    """Finish the move in flight; whatever opens or removes a store must call this first."""
    flight = in_flight(directory.path)
    if flight is not None:
        log.warning("finishing the relocation of %s to %s", flight.source, flight.target)
        _finish(directory.path, flight, step)
    return flight


def _prepare(state_path: Path, move: Move) -> InFlight:
    source = state_path / relative_path(move.source, move.store)
    if move.target is None:
        target = state_path / SET_ASIDE / f"{move.source}-{move.store}-{time.time_ns()}"
    else:
        target = state_path / relative_path(move.target, move.store)
        # A line that outlived its store is not the arriving one's.
        if _line(target, move.topic_partition) is not None:
            _forget_line(target, move.topic_partition)
    line = _line(source, move.topic_partition)
    moment = None if line is None else _checkpoint(source).moment_epoch_ms()
    return InFlight(source, target, move.topic_partition, line, moment)


def _finish(state_path: Path, flight: InFlight, step: Step) -> None:
    """All steps of a move; those that an earlier process has done are done again, to no effect."""
    _forget_line(flight.source, flight.topic_partition)
    step("line removed")
    moved = not flight.source.exists()
    if not moved and not os.path.lexists(flight.target):
        _rename(flight)
        step("renamed")
        moved = True
    # Also what an earlier process may have made without living to sync it.
    _sync({flight.source.parent, *flight.target.parents[:3]})
    step("directories synced")
    if flight.target.parent.name != SET_ASIDE:
        # Where someone has put a store in either place meanwhile, nobody knows whose the line is: it is dropped.
        if moved and flight.target.exists() and flight.offset is not None:
            _add_line(flight.target, flight.topic_partition, flight.offset, flight.moment_epoch_ms)
        else:
            _forget_line(flight.target, flight.topic_partition)
        step("line added")
    remove_durably(state_path / JOURNAL_NAME)
    step("journal removed")


def _rename(flight: InFlight) -> set[Path]:
    """Move the directory; returns the directories that are to be synced."""
    changed = {flight.source.parent, flight.target.parent}
    if not flight.target.parent.exists():
        flight.target.parent.mkdir(parents=True)
        changed.update(flight.target.parents[1:3])
    # A rename would replace an empty directory without a word.
    if os.path.lexists(flight.target):
        raise RelocationError(f"{flight.source} belongs at {flight.target}, which exists. Move either away.")
    os.rename(flight.source, flight.target)
    return changed


def _sync(directories: set[Path]) -> None:
    for path in directories:
        # What someone removed between a kill and the next start has nothing to make durable.
        with suppress(FileNotFoundError):
            sync_directory(path)


def _write_journal(state_path: Path, flight: InFlight) -> None:
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
    except CheckpointError as error:
        log.warning("%s", error)
        return None


def _forget_line(store_path: Path, topic_partition: TopicPartition) -> None:
    checkpoint = _checkpoint(store_path)
    with suppress(CheckpointError):
        if checkpoint.path.parent.exists():
            checkpoint.remove(topic_partition)


def _add_line(
    store_path: Path, topic_partition: TopicPartition, offset: int, moment_epoch_ms: float | None
) -> None:
    checkpoint = _checkpoint(store_path)
    try:
        checkpoint.add(topic_partition, offset, moment_epoch_ms)
    except CheckpointError as error:
        log.warning("%s", error)


def _checkpoint(store_path: Path) -> CheckpointFile:
    return CheckpointFile.of(store_path.parents[1])


def _remove_empty(task_path: Path) -> None:
    with suppress(OSError):
        (task_path / "rocksdb").rmdir()
        task_path.rmdir()
