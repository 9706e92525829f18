"""Polls workers for their documents, within a limited share of the process's time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from forebay.streams_metadata import HostInfo
from forebay.timeouts import running_timeout
from forebay_router.upstream.opener import Opener
from forebay_router.upstream.pool import ConnectionPool

_TIMEOUT_S = 1.0
_MAX_AT_ONCE = 32
_SHARE = 0.03
"""Share of a core for all polls together: two workers with 100 replicas each are polled at the configured
interval."""
_EXCHANGE_S = 0.0002
"""Time for sending a poll and receiving its answer, without parsing the document."""
_WEIGHT = 0.1


class PollRefused(Exception):
    """A worker answered a poll with a status other than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answered {status}")
        self.status = status


class WorkerDocuments:
    """Asks workers for documents, on connections that no read shares."""

    def __init__(self, credentials: Callable[[], bytes], opener: Opener) -> None:
        self._credentials = credentials
        self._pool = ConnectionPool(opener)
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)

    async def get(self, address: HostInfo, path: str) -> bytes:
        """The document at a path; raises ``PollRefused``, and ``OSError`` if there is no answer in time."""
        request = b"GET %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (
            path.encode(),
            str(address).encode(),
            self._credentials(),
        )
        async with self._turns, running_timeout(_TIMEOUT_S):
            answer = await self._pool[address].request(request, dedicated_connection=True)
        if answer.status != 200:
            raise PollRefused(answer.status)
        return answer.body

    async def get_json(self, address: HostInfo, path: str) -> Any:
        """The same, parsed."""
        return json.loads(await self.get(address, path))

    def forget(self, address: HostInfo) -> None:
        """Close the connections to an address that is asked no more."""
        self._pool.forget(address)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


class PollSchedule:
    """How long to wait from one poll of an address to the next, so that all together stay within their share."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._reading_s = 0.0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Measure the cost of processing one answer."""
        begun_s = time.thread_time()
        try:
            yield
        finally:
            self.spent(time.thread_time() - begun_s)

    def spent(self, reading_s: float) -> None:
        """Record the cost of one answer; the mean over all workers follows slowly."""
        self._reading_s += (reading_s - self._reading_s) * _WEIGHT

    def pause_s(self, addresses: int) -> float:
        """The wait with this many addresses to poll, at least the configured interval."""
        return max(self._interval_s, (self._reading_s + _EXCHANGE_S) * addresses / _SHARE)
