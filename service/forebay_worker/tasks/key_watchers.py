"""Watches: notify streams that a key of a replica changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from forebay_web.follower_wakeups import Waker, paced_wakes


class KeyWatchers:
    """The watched keys of one replica, each as the prefix of its stored keys.

    The event loop watches and is woken there; the applier's thread reports changes. That costs one look-up per
    changed key, and nothing while there are no watches.
    """

    def __init__(self) -> None:
        self._wakers: defaultdict[bytes, set[Waker]] = defaultdict(set)
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def watching(self, prefix: bytes, wake: Waker) -> Iterator[None]:
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
        watched = {prefix for prefix in changed if prefix in self._wakers}
        if watched:
            self._call(watched)

    def wake_all(self) -> None:
        """Wake all: it is not known what changed."""
        if self._wakers:
            self._call(set(self._wakers.copy()))

    def _call(self, watched: set[bytes]) -> None:
        # A closed loop has nothing left to wake.
        with contextlib.suppress(RuntimeError):
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._begin, watched)

    def _begin(self, watched: set[bytes]) -> None:
        paced_wakes().add(wake for prefix in watched for wake in self._wakers.get(prefix, ()))
