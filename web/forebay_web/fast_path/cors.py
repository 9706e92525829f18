"""CORS headers for a browser's origin, exactly the lines that the ordinary path's middleware adds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fastapi.middleware.cors import CORSMiddleware
from starlette.types import Message, Receive, Scope, Send

_MOST_ORIGINS = 1024


class OriginHeaders:
    """The header lines by origin, obtained from the middleware itself.

    ``options`` are the middleware's; with None there is no middleware and nothing is added.
    """

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self._middleware = None if options is None else CORSMiddleware(_begin_answer, **options)
        self.lines = lru_cache(maxsize=_MOST_ORIGINS)(self._lines)

    def _lines(self, origin: bytes) -> bytes:
        """Each line ended by CRLF; for a GET without cookies. None without an origin."""
        if self._middleware is None or not origin:
            return b""
        added: list[tuple[bytes, bytes]] = []

        async def send(message: Message) -> None:
            added.extend(message["headers"])

        scope = {"type": "http", "method": "GET", "headers": [(b"origin", origin)]}
        # It awaits only what is passed in here, so one step completes it.
        with contextlib.suppress(StopIteration):
            self._middleware(scope, _receive_nothing, send).send(None)
        return b"".join([b"%b: %b\r\n" % line for line in added])


async def _begin_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def _receive_nothing() -> Message:
    return {"type": "http.request"}
