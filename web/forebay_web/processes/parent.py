"""The parent of several processes: it starts them, signals them to end, and replaces those that die."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay.linux import module_command, module_environment
from forebay.settings import RouterSettings, Tier, WorkerSettings
from forebay_web.processes.process_slot import ProcessSlot, set_date

log = logging.getLogger(__name__)

Run = Callable[..., None]
"""Runs a process with its settings, its slot and each listener that it inherits."""

RELAYS = {signal.SIGTERM: signal.SIGUSR1, signal.SIGINT: signal.SIGUSR2}
"""The signals that the parent passes on, and as which.

A terminal interrupts whole process groups, and systemd may signal all of a service's processes: with the original
signal, a child could not distinguish its parent's from a second one, which would end it at once.
"""

RELAYED = {relay: meant for meant, relay in RELAYS.items()}
"""What the signals mean that a process gets from its parent."""

_TICK_S = 0.1
_MIN_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_STEADY_AFTER_S = 10.0
_MAY_SUCCEED_LATER = 1
_GRACE_S = 1.0
"""A process ends by itself once its time is over, and says so: it is killed only if it cannot even do that."""


def run_processes(
    tier: Tier,
    run: Run,
    settings: Sequence[RouterSettings | WorkerSettings],
    listeners: Sequence[socket.socket] = (),
) -> None:
    """Run a process with each of the settings until a signal ends them all.

    They inherit the listeners. Raises ``ForebayError`` if one of them cannot start, or did not end in order.
    """
    received: deque[signal.Signals] = deque()
    for sig in RELAYS:
        # Not ``sigtimedwait``: a library's thread may get a signal too, which would end the process.
        signal.signal(sig, lambda number, _: received.append(signal.Signals(number)))
    with tempfile.TemporaryDirectory(prefix=f"forebay-{tier}-") as directory, contextlib.ExitStack() as stack:
        first = ProcessSlot(0, len(settings), Path(directory))
        members: list[_Member] = []
        for number, of_process in enumerate(settings):
            members.append(_Member(tier, run, of_process, replace(first, number=number), listeners))
            stack.callback(members[-1].kill)
        while not received:
            time.sleep(_TICK_S)
            for member in members:
                member.replace_if_dead()
        for listener in listeners:
            # Connections would wait for this process, which accepts none.
            listener.close()
        _end(members, received, settings[0].shutdown_timeout_ms / 1000 + _GRACE_S)
        unordered = sum(not member.ended_in_order() for member in members)
    if unordered:
        error = ForebayError(f"{unordered} of {len(members)} processes of the {tier} did not end in order.")
        error.exit_status = _MAY_SUCCEED_LATER
        raise error


def _end(members: Sequence[_Member], received: deque[signal.Signals], within_s: float) -> None:
    """Pass signals on until all have ended, for this long at most."""
    deadline_s = time.monotonic() + within_s
    while any(member.running for member in members) and time.monotonic() < deadline_s:
        while received:
            relay = RELAYS[received.popleft()]
            # All at once: if one listener closed early, its share of new connections would be refused.
            for member in members:
                member.send(relay)
        time.sleep(_TICK_S)


def pause_before_restart_s(lived_s: float, last_pause_s: float) -> float:
    """How long to wait before replacing a process: longer each time, if none lives for long."""
    if lived_s >= _STEADY_AFTER_S:
        return _MIN_PAUSE_S
    return min(max(2 * last_pause_s, _MIN_PAUSE_S), _MAX_PAUSE_S)


class _Member:
    """One of the processes, and its successors after it dies."""

    def __init__(
        self, tier: Tier, run: Run, settings: Any, place: ProcessSlot, listeners: Sequence[socket.socket]
    ) -> None:
        self._tier = tier
        self._report = place.report_of(place.number)
        self._descriptors = [listener.fileno() for listener in listeners]
        self._job = pickle.dumps((run, settings, place, os.getpid(), self._descriptors))
        self._pause_s = 0.0
        self._start()

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._restart_s: float | None = None
        # In a process started meanwhile the signals stay blocked, and it obeys the relays.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYS)
        try:
            self._process = subprocess.Popen(
                module_command("forebay_web.processes.child", self._tier),
                stdin=subprocess.PIPE,
                env=module_environment(),
                pass_fds=self._descriptors,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # One that is already dead is noticed at the next check.
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(self._job)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def replace_if_dead(self) -> None:
        """Replace it some time after its death; raises ``ForebayError`` if none ever came up, as the next would
        not either."""
        if self.running:
            return
        now_s = time.monotonic()
        if self._restart_s is None:
            self._on_death(now_s)
        elif now_s >= self._restart_s:
            try:
                self._start()
            except OSError as error:
                # The others keep serving; it is retried as if it had died.
                log.error("no process of the %s can be started: %s", self._tier, error)

    def _on_death(self, now_s: float) -> None:
        if not self._report.exists():
            raise self._failed_start()
        # The others need not wait until it is old.
        set_date(self._report, 0)
        self._pause_s = pause_before_restart_s(now_s - self._started_s, self._pause_s)
        self._restart_s = now_s + self._pause_s
        log.error("process %d of the %s %s; it will be replaced", self._process.pid, self._tier, self._end())

    def _failed_start(self) -> ForebayError:
        """The error that ends the parent; its status says whether to try again, as the process's does."""
        error = ForebayError(
            f"A process of the {self._tier} {self._end()} before it was up; see its messages above."
        )
        if self._process.returncode < 0 or self._process.returncode == _MAY_SUCCEED_LATER:
            error.exit_status = _MAY_SUCCEED_LATER
        return error

    def ended_in_order(self) -> bool:
        """Whether it has ended by itself; logs what it did instead."""
        # A second signal ends it at once, as was meant.
        in_order = not self.running and self._process.returncode in (0, *(-sig for sig in (*RELAYS, *RELAYED)))
        if not in_order:
            log.error("process %d of the %s %s", self._process.pid, self._tier, self._end())
        return in_order

    def _end(self) -> str:
        status = self._process.returncode
        if status is None:
            return "did not end within shutdown_timeout_ms, so it is killed"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def send(self, sig: signal.Signals) -> None:
        self._process.send_signal(sig)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
