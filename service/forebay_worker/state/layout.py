"""Where stores lie in a state directory; every path is relative to it."""

from __future__ import annotations

import re
import time
from pathlib import Path

from forebay.task_ids import TaskId

STORES = "rocksdb"
"""The directory of a task's stores, as in Kafka Streams."""
SET_ASIDE = Path(".set-aside")
"""The directory of stores that are not trusted."""

_SET_ASIDE_NAME = re.compile(r"([0-9]+_[0-9]+)-(.+)-[0-9]+")


def store_path(task: TaskId, store: str) -> Path:
    """Where a task keeps its partition of a store."""
    return Path(str(task), STORES, store)


def new_set_aside_path(task: TaskId, store: str) -> Path:
    """A new place for what a task kept of a store, of which there may be several."""
    return SET_ASIDE / f"{task}-{store}-{time.time_ns()}"


def is_set_aside(path: Path) -> bool:
    """Whether a path is such a place."""
    return path.parent.name == SET_ASIDE.name


def parse_set_aside(name: str) -> tuple[TaskId, str] | None:
    """The task and the store of such a place; None if it is none."""
    match = _SET_ASIDE_NAME.fullmatch(name)
    return None if match is None else (TaskId.parse(match[1]), match[2])


_PREFIX = "process-"


def state_dir_of(state_dir: Path, number: int) -> Path:
    """A process's state directory.

    The first has the worker's own, as if it were the only one. Why: what lies there stays in use, and nothing is
    moved, whatever becomes of the number of processes.
    """
    return state_dir if number == 0 else state_dir / f"{_PREFIX}{number}"


def processes_with_state(state_dir: Path, application_id: str) -> list[int]:
    """The numbers of the processes that have state of an application there."""
    names = [path.name.removeprefix(_PREFIX) for path in state_dir.glob(f"{_PREFIX}*")]
    further = sorted(int(name) for name in names if name.isdecimal() and not name.startswith("0"))
    return [number for number in (0, *further) if (state_dir_of(state_dir, number) / application_id).is_dir()]


def unused_state(state_dir: Path, application_id: str, processes: int) -> list[Path]:
    """The state of an application that further processes have left, when there were more than now."""
    numbers = processes_with_state(state_dir, application_id)
    return [state_dir_of(state_dir, number) / application_id for number in numbers if number >= processes]
