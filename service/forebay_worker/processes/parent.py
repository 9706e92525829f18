"""The parent of a worker's processes, each of which is a member of the group."""

from __future__ import annotations

import contextlib

from forebay.settings import WorkerSettings
from forebay_web.processes.parent import ProcessStart, run_processes
from forebay_worker.processes.shares import shares


def run_worker_processes(settings: WorkerSettings) -> None:
    """Run a worker of several processes until a signal ends it; raises ``ForebayError`` if it cannot start."""
    starts = [ProcessStart("worker", "forebay_worker.child", share) for share in shares(settings)]
    run_processes(starts, settings.shutdown_timeout_ms, contextlib.nullcontext(()))
