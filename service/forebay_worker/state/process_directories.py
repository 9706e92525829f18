"""Where the processes of one worker keep their state, and what more of them have left there."""

from __future__ import annotations

from pathlib import Path

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
