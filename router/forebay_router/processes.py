"""A router of several processes: their parent starts them, tells them to end, and replaces those that die.

The address is theirs alone to listen on, by SO_REUSEPORT: the kernel spreads connections over those that live, and
none waits for one that is not there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from forebay.errors import ForebayError
from forebay.metadata import HostInfo
from forebay.rest.server import bind, cannot_listen
from forebay.settings import RouterSettings
from forebay_router.siblings import Place

log = logging.getLogger(__name__)

RELAYS = {signal.SIGTERM: signal.SIGUSR1, signal.SIGINT: signal.SIGUSR2}
"""What the parent passes on, as what.

A terminal interrupts whole process groups, and systemd ends all of a service's processes: by the signal itself a
child could not tell its parent's word from a second signal, which would end it at once.
"""

_TICK_S = 0.1
_LEAST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_STEADY_AFTER_S = 10.0


def run_processes(settings: RouterSettings) -> None:
    """Run a router of several processes until a signal ends it; raises ``ForebayError`` where it cannot start."""
    received = _receive()
    with claim(settings.listen), tempfile.TemporaryDirectory(prefix="forebay-router-") as directory:
        places = [Place(number, settings.processes, Path(directory)) for number in range(settings.processes)]
        children = [Child(settings, place) for place in places]
        try:
            _watch(children, received)
            _end(children, settings.shutdown_timeout_ms / 1000, received)
        finally:
            for child in children:
                child.kill()


def claim(listen: HostInfo) -> socket.socket:
    """Hold an address for processes that share it; raises ``ListenAddressInUse``.

    A shared address admits every process of the same user that shares it too. So one asks first as if it did not;
    and while the processes start, and nobody listens yet, an abstract Unix socket, which is of the same network
    namespace as the port, keeps out a second router.
    """
    with bind(listen) as asked:
        # The same by whichever name it is given.
        host, port = asked.getsockname()[:2]
    claimed = socket.socket(socket.AF_UNIX)
    try:
        claimed.bind(f"\0forebay-router/{host}:{port}")
    except OSError as error:
        claimed.close()
        raise cannot_listen(listen, error) from None
    return claimed


def pause_before_restart_s(lived_s: float, last_pause_s: float) -> float:
    """How long to wait before a child is replaced: longer each time, if none lives for long."""
    if lived_s >= _STEADY_AFTER_S:
        return _LEAST_PAUSE_S
    return min(max(2 * last_pause_s, _LEAST_PAUSE_S), _MOST_PAUSE_S)


class Child:
    """One process of the router, and after it died the next."""

    def __init__(self, settings: RouterSettings, place: Place) -> None:
        self._settings = settings
        self._place = place
        self._pause_s = 0.0
        self._start()

    def _start(self) -> None:
        self._started_s = time.monotonic()
        self._restart_s: float | None = None
        # Modules are looked for where the parent does, which may not be where it was started.
        command = [sys.executable, "-P", "-m", "forebay_router.child"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with _blocked():
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        assert self._process.stdin is not None
        # One that is dead already is noticed at the next look.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(pickle.dumps((self._settings, self._place, os.getpid())))

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def look_after(self) -> None:
        """Replace it once it is dead; raises ``ForebayError`` where none was ever up, as the next would not be."""
        now_s = time.monotonic()
        if self.running:
            return
        if self._restart_s is None:
            if not self._place.socket_of(self._place.number).exists():
                raise ForebayError(
                    f"A process of the router {self._end()} before it was up; see what it said above."
                )
            self._pause_s = pause_before_restart_s(now_s - self._started_s, self._pause_s)
            self._restart_s = now_s + self._pause_s
            log.error("process %d of the router %s; another follows", self._process.pid, self._end())
        if now_s >= self._restart_s:
            try:
                self._start()
            except OSError as error:
                # The others serve on; it is tried again as if it had died.
                log.error("no process of the router can be started: %s", error)

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
    """Put the signals that come into a queue.

    By handlers, not by ``sigtimedwait``: a library's thread may get a signal too, which would end the process.
    """
    received: _Received = queue.SimpleQueue()
    for sig in RELAYS:
        signal.signal(sig, lambda number, _: received.put(signal.Signals(number)))
    return received


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block the signals for a moment. In a process that begins meanwhile they stay so, and it heeds the relays."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, RELAYS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(children: list[Child], received: _Received) -> None:
    """Replace children that die, until a signal comes, which is passed on."""
    while (sig := _next(received)) is None:
        for child in children:
            child.look_after()
    _relay(sig, children)


def _end(children: list[Child], within_s: float, received: _Received) -> None:
    """Wait until all have ended, for so long; pass on what signals come meanwhile."""
    deadline_s = time.monotonic() + within_s
    while any(child.running for child in children) and time.monotonic() < deadline_s:
        sig = _next(received)
        if sig is not None:
            _relay(sig, children)


def _next(received: _Received) -> signal.Signals | None:
    """The signal that comes, None if none does for a moment."""
    try:
        return received.get(timeout=_TICK_S)
    except queue.Empty:
        return None


def _relay(sig: signal.Signals, children: list[Child]) -> None:
    # All at once: a listener that closed early would leave its share of new connections to be refused.
    for child in children:
        child.send(RELAYS[sig])
