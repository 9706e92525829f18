"""Serving: the start, signals, draining and the end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.errors import NotReady, SettingError
from forebay.listen_addresses import ListenAddress, tcp_addresses
from forebay.streams_metadata import HostInfo
from forebay.wire.answer_schemas.status import IDENTITY_PATH
from forebay.wire.answers import json_answer, problem_answer
from forebay_web.application import respond
from forebay_web.fast_path.protocol import FastPathProtocol, KeyHandler, Outcome, left_to_slow_path, make_protocol
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate
from forebay_web.hosts import ANY_HOST
from forebay_web.limits import Held, Limits
from forebay_web.listeners import TlsListener, cannot_listen

log = logging.getLogger(__name__)

_LIVE = json_answer({"live": True})
_ACCEPTED_IN_A_TURN = 8
_GARBAGE_THRESHOLDS = (5_000, 20, 50)
"""New objects less those that went until the newest are searched for cycles, searches until older ones are."""


async def answer_while_starting(scope: Scope, receive: Receive, send: Send) -> None:
    """The application until there is one. Its connections end, since they are not offered to the fast path."""
    problem = NotReady("The process is starting.", retry_after_s=1)
    response = respond(_LIVE if scope["path"] == "/livez" else problem_answer(problem))
    response.headers["connection"] = "close"
    await response(scope, receive, send)


def starting_protocol(limits: Limits) -> type[FastPathProtocol]:
    """The protocol of connections that are accepted meanwhile, which has nothing answered on the fast path."""
    return make_protocol("start", _NoHandlers(), ANY_HOST, (), lambda: False, limits)


class _NoHandlers:
    def key(self, template: RequestTemplate) -> KeyHandler:
        return left_to_slow_path

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        return None


def allow_open_files() -> None:
    """Raise the limit on open files to the hard limit.

    The usual limit is below the number of connections accepted; a worker's stores need about ten files each as
    well.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def collect_garbage_rarely() -> None:
    """Never search for cycles what exists at this moment, and seldom what lasts.

    Why: no read is answered during a search.
    """
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def advertised(listen: Iterable[ListenAddress], advertise: HostInfo | None) -> HostInfo:
    """The address that others use: as given, else the first listen address of TCP, with this machine's name if
    that is a wildcard, which is logged. Raises ``SettingError`` if there is none."""
    if advertise is not None:
        return advertise
    for address in tcp_addresses(listen):
        return _named(address) if address.is_unspecified else address
    raise SettingError("listen has no address that routers reach: add one of HOST:PORT, or give --advertise.")


def _named(wildcard: HostInfo) -> HostInfo:
    """The wildcard's port at this machine."""
    named = HostInfo(_machine_name(), wildcard.port)
    log.warning(
        "listening on all addresses (%s), so this process advertises the machine's name, %s: routers and other "
        "workers must reach it there. Otherwise give --advertise HOST:PORT.",
        wildcard,
        named,
    )
    return named


def _machine_name() -> str:
    """The full name of this machine, or its short one where the full one is that of loopback.

    Why: ``/etc/hosts`` often lists both at 127.0.0.1, with ``localhost`` or ``localhost.localdomain`` first.
    """
    name = socket.getfqdn()
    return socket.gethostname() if name.partition(".")[0].endswith("localhost") else name


class Draining:
    """The application of a process: ``app``, which is replaced once the process has started.

    It adds ``Connection: close`` to every answer once draining, so that clients move on, except to an identity: a
    router begins each connection with it, and has nothing else answered yet. A request that is cancelled then,
    since it takes longer than the process has left, gets a 503.
    """

    def __init__(self) -> None:
        self.app: ASGIApp = answer_while_starting
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = scope["type"] != "http"

        async def send_closing(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if self.draining and scope["path"] != IDENTITY_PATH:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        try:
            await self.app(scope, receive, send if started else send_closing)
        except asyncio.CancelledError:
            if started or not self.draining:
                raise
            problem = NotReady("The process ends before the request could be answered.", retry_after_s=1)
            await respond(problem_answer(problem))(scope, receive, send_closing)


class Service(NamedTuple):
    """What a process serves once it has started; ``on_drain`` is called when it begins to drain."""

    app: ASGIApp
    protocol: type[asyncio.Protocol]
    on_drain: Callable[[], None]


class HttpServer(uvicorn.Server):
    """uvicorn, but it starts a service first, and on SIGTERM or SIGINT the listeners stay open for ``drain_ms``.

    A second signal closes at once, and one during the start ends the process. ``relays`` are signals that mean one
    of the two. Whatever hangs, the process ends within ``shutdown_timeout_ms``: that is as safe as a kill.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        application: Draining,
        start: Callable[[], Service],
        *,
        listens_first: bool,
        drain_ms: int,
        shutdown_timeout_ms: int,
        relays: Mapping[signal.Signals, signal.Signals],
    ) -> None:
        super().__init__(config)
        self._application = application
        self._start = start
        self._listens_first = listens_first
        self._service: Service | None = None
        self._drain_s = drain_ms / 1000
        self._shutdown_timeout_s = shutdown_timeout_ms / 1000
        self._relays = relays

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the service and listen; raises what its start does, and ``ListenAddressInUse`` if another process
        has listened since the address was bound."""
        assert sockets is not None
        servers = self.servers = []
        try:
            if self._listens_first:
                await self._listen(sockets)
            # Beside the event loop, which answers meanwhile.
            service = self._service = await asyncio.to_thread(self._start)
            self._application.app, self.config.http_protocol_class = service.app, service.protocol
            await super().startup([])
            self.servers = servers
            if not self._listens_first:
                await self._listen(sockets)
        except BaseException:
            # The end of uvloop would wait for whoever is connected.
            self.servers, self.force_exit = servers, True
            await self.shutdown(sockets)
            raise
        collect_garbage_rarely()

    async def _listen(self, listeners: Iterable[socket.socket]) -> None:
        for listener in listeners:
            try:
                # uvloop does not report that it cannot.
                listener.listen(self.config.backlog)
            except OSError as error:
                raise cannot_listen(HostInfo(*listener.getsockname()[:2]), error) from None
            listener.setblocking(False)
            self.servers.append(await self._serve_on(listener))

    async def _serve_on(self, listener: socket.socket) -> asyncio.Server:
        """Serve a socket, with TLS if it is one of TCP; uvicorn would speak it on every socket."""
        if self.config.ssl is None or listener.family == socket.AF_UNIX:
            loop = asyncio.get_running_loop()
            return await loop.create_server(self._make_protocol, sock=listener, backlog=self.config.backlog)
        limits: Limits = self.config.http_protocol_class.limits  # type: ignore[attr-defined]
        return TlsListener(listener, self.config.ssl, limits, self._make_protocol)  # type: ignore[return-value]

    def _make_protocol(self, held: Held | None = None) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        protocol.accepted = held
        return protocol  # type: ignore[no-any-return]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close listeners and connections, and let the application end."""
        await super().shutdown(sockets)
        if self.force_exit and self.started:
            # A forced exit in uvicorn skips that, and logs a traceback of what it cancels.
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        for relay in self._relays:
            signal.signal(relay, lambda sig, frame: self.handle_exit(self._relays[signal.Signals(sig)], frame))
        with super().capture_signals():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; called by the signal handler."""
        if self._service is None:
            # Nothing is served, and what is on disk bears a kill.
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
            return
        if self._application.draining:
            self.force_exit = self.should_exit = True
            return
        self._application.draining = True
        self._limit()
        self._service.on_drain()
        loop = asyncio.get_event_loop()
        delay = 0.0 if sig == signal.SIGINT else self._drain_s
        log.info("%s: answering for %.1f s more, then stopping", signal.Signals(sig).name, delay)
        loop.call_soon_threadsafe(loop.call_later, delay, self._exit)

    def _limit(self) -> None:
        """End the process if it has not ended in time, whatever holds it up."""
        limit = threading.Timer(self._shutdown_timeout_s, _end_process)
        limit.daemon = True
        try:
            limit.start()
        except RuntimeError as error:
            log.warning("the time to stop is not limited: %s", error)

    def _exit(self) -> None:
        self.should_exit = True


def _end_process() -> None:
    log.error("the process could not stop in order within shutdown_timeout_ms, so it exits")
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(1)


def serve(
    start: Callable[[], Service],
    listeners: Sequence[socket.socket],
    limits: Limits,
    *,
    drain_ms: int,
    shutdown_timeout_ms: int,
    listens_first: bool = False,
    tls: ssl.SSLContext | None = None,
    relays: Mapping[signal.Signals, signal.Signals] = MappingProxyType({}),
) -> None:
    """Start a service, serve it until a signal ends it, then drain and return.

    With ``listens_first`` it says meanwhile that it is not ready; otherwise it listens once it has started. With
    ``tls``, listeners of TCP speak HTTPS only. ``relays`` are signals that mean SIGTERM or SIGINT. Raises what
    ``start`` does, and ``ListenAddressInUse``.
    """
    application = Draining()
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http=starting_protocol(limits),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, (shutdown_timeout_ms - drain_ms) // 2000),
    )
    # Only later versions take a context; all read this one once they are loaded.
    config.load()
    config.ssl = tls
    # libuv accepts one connection per socket in a turn of the event loop, and a turn under load is long: hundreds
    # of clients that reconnect at once would wait for seconds. Each duplicate of the socket accepts one more.
    duplicates = [listener.dup() for listener in listeners for _ in range(_ACCEPTED_IN_A_TURN - 1)]
    HttpServer(
        config,
        application,
        start,
        listens_first=listens_first,
        drain_ms=drain_ms,
        shutdown_timeout_ms=shutdown_timeout_ms,
        relays=relays,
    ).run(sockets=[*listeners, *duplicates])
