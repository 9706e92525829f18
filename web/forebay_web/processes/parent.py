"""The parent of several processes: it starts them, signals them to end, and replaces those that die."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forebay.errors import ForebayError
from forebay.settings import RouterSettings, Tier, WorkerSettings
from forebay_web.processes.peer_processes import ProcessSlot
from forebay_web.processes.python_module import module_command, module_environment

log = logging.getLogger(__name__)

RELAYS = {signal.SIGTERM: signal.SIGUSR1, signal.SIGINT: signal.SIGUSR2}
"""The signals that the parent passes on, and as which.

A terminal interrupts whole process groups, and systemd signals all of a service's processes: with the original
signal, a child could not distinguish its parent's from a second one, which would end it at once.
"""

RELAYED = {relay: meant for meant, relay in RELAYS.items()}
"""What the signals mean that a process gets from its parent."""

_TICK_S = 0.1
_LEAST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_STEADY_AFTER_S = 10.0
_MAY_SUCCEED_LATER = 1
_GRACE_S = 1.0
"""A process ends by itself once its time is over, and says so: it is killed only if it cannot even do that."""


@dataclass(frozen=True)
class ProcessStart:
    """How one of a tier's processes is started: as ``python -m MODULE``, which gets its settings by
    ``run_as_child``."""

    tier: Tier
    module: str
    settings: RouterSettings | WorkerSettings


def run_processes(
    starts: Sequence[ProcessStart],
    within_ms: int,
    reserved: contextlib.AbstractContextManager[Sequence[socket.socket]],
) -> None:
    """Run processes until a signal ends them all; they have ``within_ms`` to end.

    They inherit the listeners of ``reserved``. Raises ``ForebayError`` if one of them cannot start, or did not end
    in order.
    """
    received = _receive()
    with contextlib.ExitStack() as stack:
        listeners = stack.enter_context(reserved)
        name = starts[0].tier
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"forebay-{name}-")))
        first = ProcessSlot(0, len(starts), directory)
        children: list[ManagedProcess] = []
        try:
            for number, start in enumerate(starts):
                children.append(ManagedProcess(start, replace(first, number=number), listeners))
            _watch(children, received)
            for listener in listeners:
                # Connections would wait for this process, which accepts none.
                listener.close()
            _end(children, within_ms / 1000 + _GRACE_S, received)
            unordered = sum(not child.ended_in_order() for child in children)
        finally:
            for child in children:
                child.kill()
    if unordered:
        error = ForebayError(f"{unordered} of {len(children)} processes of the {name} did not end in order.")
        error.exit_status = _MAY_SUCCEED_LATER
        raise error


def pause_before_restart_s(lived_s: float, last_pause_s: float) -> float:
    """How long to wait before replacing a child: longer each time, if none lives for long."""
    if lived_s >= _STEADY_AFTER_S:
        return _LEAST_PAUSE_S
    return min(max(2 * last_pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S)


class ManagedProcess:
    """One of the processes, and its successors after it dies."""

    def __init__(self, start: ProcessStart, place: ProcessSlot, listeners: Sequence[socket.socket]) -> None:
        self._spec = start
        self._place = place
        self._descriptors = [listener.fileno() for listener in listeners]
        self._pause_s = 0.0
        self._start()

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._restart_s: float | None = None
        with _blocked():
            self._process = subprocess.Popen(
                module_command(self._spec.module),
                stdin=subprocess.PIPE,
                env=module_environment(),
                pass_fds=self._descriptors,
            )
        assert self._process.stdin is not None
        # One that is already dead is noticed at the next check.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(pickle.dumps((self._spec.settings, self._place, os.getpid(), self._descriptors)))

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def replace_if_dead(self) -> None:
        """Replace it once it is dead; raises ``ForebayError`` if none ever came up, as the next would not
        either."""
        now_s = time.monotonic()
        if self.running:
            return
        if self._restart_s is None:
            if not self._place.socket_of(self._place.number).exists():
                raise self._failed_start()
            self._pause_s = pause_before_restart_s(now_s - self._started_s, self._pause_s)
            self._restart_s = now_s + self._pause_s
            log.error(
                "process %d of the %s %s; it will be replaced", self._process.pid, self._spec.tier, self._end()
            )
        if now_s >= self._restart_s:
            try:
                self._start()
            except OSError as error:
                # The others keep serving; it is retried as if it had died.
                log.error("no process of the %s can be started: %s", self._spec.tier, error)

    def _failed_start(self) -> ForebayError:
        """The error that ends the parent. Its status says whether to try again: as the process's does, and after
        a signal."""
        error = ForebayError(
            f"A process of the {self._spec.tier} {self._end()} before it was up; see its messages above."
        )
        if self._process.returncode < 0 or self._process.returncode == _MAY_SUCCEED_LATER:
            error.exit_status = _MAY_SUCCEED_LATER
        return error

    def ended_in_order(self) -> bool:
        """Whether it has ended, and by itself; logs what it did instead."""
        if self.running:
            log.error(
                "process %d of the %s did not end within shutdown_timeout_ms, so it is killed",
                self._process.pid,
                self._spec.tier,
            )
            return False
        # A second signal ends it at once, as was meant.
        in_order = self._process.returncode in (0, *(-sig for sig in (*RELAYS, *RELAYED)))
        if not in_order:
            log.error("process %d of the %s %s", self._process.pid, self._spec.tier, self._end())
        return in_order

    def _end(self) -> str:
        status = self._process.returncode
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"ended with status {status}"

    def send(self, sig: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(sig)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


_Received = queue.SimpleQueue[signal.Signals]


def _receive() -> _Received:
    """Put incoming signals into a queue.

    With handlers, not ``sigtimedwait``: a library's thread may get a signal too, which would end the process.
    """
    received: _Received = queue.SimpleQueue()
    for sig in RELAYS:
        signal.signal(sig, lambda number, _: received.put(signal.Signals(number)))
    return received


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block the signals for a moment. In a process started meanwhile they stay blocked, and it obeys the
    relays."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(children: list[ManagedProcess], received: _Received) -> None:
    """Replace children that die, until a signal arrives, which is passed on."""
    while (sig := _next(received)) is None:
        for child in children:
            child.replace_if_dead()
    _relay(sig, children)


def _end(children: list[ManagedProcess], within_s: float, received: _Received) -> None:
    """Wait this long for all to end; pass on signals that arrive meanwhile."""
    deadline_s = time.monotonic() + within_s
    while any(child.running for child in children) and time.monotonic() < deadline_s:
        sig = _next(received)
        if sig is not None:
            _relay(sig, children)


def _next(received: _Received) -> signal.Signals | None:
    """The next signal, None if none arrives for a moment."""
    try:
        return received.get(timeout=_TICK_S)
    except queue.Empty:
        return None


def _relay(sig: signal.Signals, children: list[ManagedProcess]) -> None:
    # All at once: if one listener closed early, its share of new connections would be refused.
    for child in children:
        child.send(RELAYS[sig])
