"""Bodies that are received in time: httpx's time-out for reading begins anew with each piece of one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import httpx

_LATE = "The body did not arrive in time."


class _BoundedBody(httpx.SyncByteStream):
    """Raises ``httpx.ReadTimeout`` with the first piece that is late."""

    def __init__(self, body: httpx.SyncByteStream, request: httpx.Request, until_s: float) -> None:
        self._body, self._request, self._until_s = body, request, until_s

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body:
            if time.monotonic() > self._until_s:
                raise httpx.ReadTimeout(_LATE, request=self._request)
            yield piece

    def close(self) -> None:
        self._body.close()


class _AsyncBoundedBody(httpx.AsyncByteStream):
    """The same of an asynchronous client."""

    def __init__(self, body: httpx.AsyncByteStream, request: httpx.Request, until_s: float) -> None:
        self._body, self._request, self._until_s = body, request, until_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            if time.monotonic() > self._until_s:
                raise httpx.ReadTimeout(_LATE, request=self._request)
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


def read_whole(response: httpx.Response, allowed: httpx.Timeout) -> None:
    """Receive a response's body; raises ``httpx.ReadTimeout`` if it takes longer than a piece of it may."""
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _BoundedBody(response.stream, response.request, _until_s(allowed))
    try:
        response.read()
    finally:
        response.close()


async def read_whole_async(response: httpx.Response, allowed: httpx.Timeout) -> None:
    """The same of an asynchronous client."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _AsyncBoundedBody(response.stream, response.request, _until_s(allowed))
    try:
        await response.aread()
    finally:
        await response.aclose()


def _until_s(allowed: httpx.Timeout) -> float:
    return float("inf") if allowed.read is None else time.monotonic() + allowed.read
