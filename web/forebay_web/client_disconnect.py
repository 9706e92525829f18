"""Ends what is done for a client that has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

_T = TypeVar("_T")


async def left(receive: Receive) -> None:
    """Return once the client has closed its connection; nothing of the request's body may be left to read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def for_client(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The outcome of some work for a request; raises ``ClientDisconnect`` as soon as its client has left."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
        # An error refers to this frame: if this referred to it, all it holds would stay until a collection.
        del working, leaving
