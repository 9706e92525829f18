"""Processes of forebay's commands, forked from one that has imported their code: half of a start is imports."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PATH = tuple(sys.path)
"""The module search path before any test adds to it: a test's processes need not find what the test can."""
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [
        "forebay.cli",
        "forebay_client.query_command",
        "forebay_client.status_command",
        "forebay_worker.command",
        "forebay_worker.app",
        "forebay_worker.group.kafka.membership",
        "forebay_router.command",
        "forebay_router.app",
        "uvloop",
        __name__,
    ]
)


class CommandProcess:
    """``python -m forebay`` with these arguments, and what ``subprocess.Popen`` has of it.

    ``log`` gets what it writes, but for standard error if that has a file of its own, ``errors``.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], errors: Path | None = None
    ) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._process = _FORKED.Process(
            target=_run,
            args=(list(arguments), [log, errors or log], dict(environment), limits, _PATH, os.getcwd()),
            daemon=True,
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative if a signal ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        self._process.join(timeout_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("forebay", timeout_s or 0.0)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.returncode is None:
            # It may end at this moment.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: list[str],
    written: list[Path],
    environment: dict[str, str],
    limits: tuple[int, int],
    path: tuple[str, ...],
    directory: str,
) -> None:
    os.chdir(directory)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.environ.clear()
    os.environ.update(environment)
    # As the interpreter does when it starts.
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    sys.argv[1:] = arguments
    for standard, file in enumerate(written, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, standard)
        os.close(opened)
    runpy.run_module("forebay", run_name="__main__", alter_sys=True)
