"""Watches: notify streams that a key of a replica changed, or any."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from forebay_web.follower_wakeups import Waker, follower_turns


class KeyWatchers:
    """The watched keys of one replica, each as the prefix of its stored keys; None for any key.

    The event loop watches and is woken there; the applier's thread reports changes. That costs one look-up per
    changed key, and nothing while there are no watches.
    """

    def __init__(self) -> None:
        self._wakers: defaultdict[bytes | None, set[Waker]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def watching(self, prefix: bytes | None, wake: Waker) -> Iterator[None]:
        """Have ``wake`` called, in the event loop, after each change of a key."""
        self._loop = asyncio.get_running_loop()
        self._wakers[prefix].add(wake)
        try:
            yield
        finally:
            self._wakers[prefix].discard(wake)
            if not self._wakers[prefix]:
                del self._wakers[prefix]

    def wake(self, changed: Iterable[bytes]) -> None:
        """Wake those that watch one of these keys; in any thread, once the change can be read."""
        if not self._wakers:
            return
        prefixes = set(changed)
        if prefixes:
            self._call({prefix for prefix in (None, *prefixes) if prefix in self._wakers})

    def wake_all(self) -> None:
        """Wake all: it is not known what changed."""
        if self._wakers:
            self._call(set(self._wakers.copy()))

    def _call(self, watched: set[bytes | None]) -> None:
        if not watched:
            return
        # A closed loop has nothing left to wake.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._begin, watched)

    def _begin(self, watched: set[bytes | None]) -> None:
        follower_turns().add(*(wake for prefix in watched for wake in self._wakers.get(prefix, ())))
