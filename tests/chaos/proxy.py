"""A TCP proxy before each worker, which cuts, delays or holds what passes through it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Literal

Mode = Literal["pass", "cut", "delay", "hold", "half-open"]
DELAY_S = 0.15
_PIECE_BYTES = 1 << 16


class Proxy:
    """Forwards a port to another.

    ``cut`` resets every connection, ``delay`` delays each piece, ``hold`` keeps all bytes until it is over, as
    routers that drop packets do. ``half-open`` keeps the answers, and resets its connections when it is over: the
    client has sent its requests and hears nothing.
    """

    def __init__(self, host: str, port: int, upstream_port: int) -> None:
        self.address = f"{host}:{port}"
        self._host, self._port, self._upstream_port = host, port, upstream_port
        self._mode: Mode = "pass"
        self._passing = asyncio.Event()
        self._passing.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port, backlog=512)

    def close(self) -> None:
        """Stop listening, and reset every connection; called in its event loop."""
        if self._server is not None:
            self._server.close()
        self.switch("cut")

    def switch(self, mode: Mode) -> None:
        """Change how it forwards; called in its event loop."""
        before, self._mode = self._mode, mode
        if mode in ("hold", "half-open"):
            self._passing.clear()
        else:
            self._passing.set()
        if mode == "cut" or before == "half-open":
            for writer in self._connections:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "cut":
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(self._host, self._upstream_port)
            self._connections |= {writer, there[1]}
            try:
                await asyncio.gather(
                    self._forward(reader, there[1], answers=False), self._forward(there[0], writer, answers=True)
                )
            finally:
                self._connections -= {writer, there[1]}
                there[1].transport.abort()
        writer.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(_PIECE_BYTES):
                if self._mode == "delay":
                    await asyncio.sleep(DELAY_S)
                if answers or self._mode != "half-open":
                    await self._passing.wait()
                sink.write(piece)
                await sink.drain()
        if sink.can_write_eof():
            with contextlib.suppress(OSError):
                sink.write_eof()


class Proxies:
    """Proxies in an event loop of their own thread."""

    def __init__(self) -> None:
        self._proxies: list[Proxy] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, host: str, port: int, upstream_port: int) -> Proxy:
        """A new proxy, which listens."""
        proxy = Proxy(host, port, upstream_port)
        asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result(10)
        self._proxies.append(proxy)
        return proxy

    def switch(self, proxy: Proxy, mode: Mode) -> None:
        """Change how a proxy forwards."""
        self._loop.call_soon_threadsafe(proxy.switch, mode)

    def close(self) -> None:
        """End all of them."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
