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
