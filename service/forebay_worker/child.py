"""One of a worker's several processes."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.settings import WorkerSettings
from forebay_web.processes.child import run_as_child
from forebay_web.processes.peer_processes import ProcessSlot
from forebay_worker.command import run


def _run(settings: WorkerSettings, place: ProcessSlot, _: Sequence[int]) -> None:
    run(settings, place)


if __name__ == "__main__":
    run_as_child(_run)
