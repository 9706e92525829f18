"""Serving: the listening socket, signals, draining and the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType, MappingProxyType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.errors import ConfigurationError, ListenAddressInUse, NotReady, SettingError
from forebay.listen_addresses import ListenAddress, tcp_addresses
from forebay.process_identity import IDENTITY_PATH
from forebay.streams_metadata import HostInfo
from forebay.wire.answers import problem_answer
from forebay_web.application import respond
from forebay_web.limits import Held, Limits
from forebay_web.proxied_listener import CountingListener, ProxyHeaders
from forebay_web.proxy_header import Client
from forebay_web.unix_listeners import is_unix_listener

log = logging.getLogger(__name__)

_ACCEPTED_IN_A_TURN = 8
_MOST_HANDSHAKE_S = 10.0
_GARBAGE_THRESHOLDS = (5_000, 20, 50)
"""New objects less those that went until the newest are searched for cycles, searches until older ones are."""


def bind(listen: HostInfo, *, shared: bool = False, only_ipv6: bool = False) -> socket.socket:
    """The listening socket; raises ``ListenAddressInUse`` naming the address.

    A ``shared`` address may be used by several processes of the same user if all share it. With ``only_ipv6`` the
    wildcard ``[::]`` leaves the machine's addresses of IPv4 to other sockets.
    """
    family = socket.AF_INET if listen.is_ipv4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if only_ipv6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((listen.host, listen.port))
    except OSError as error:
        listener.close()
        raise cannot_listen(listen, error) from None
    return listener


def cannot_listen(listen: HostInfo, error: OSError) -> ListenAddressInUse:
    """The error for an operator when an address cannot be listened on."""
    in_use = ListenAddressInUse(
        f"Cannot listen on {listen}: {error.strerror}. Choose another address with --listen."
    )
    if error.errno != errno.EADDRINUSE:
        # Trying again will not make the address this host's.
        in_use.exit_status = ConfigurationError.exit_status
    return in_use


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
    """Adds ``Connection: close`` to every answer once draining, so that clients move on.

    To an identity it is not added: a router begins each connection with it, and has nothing else answered yet.
    A request that is cancelled then, since it takes longer than the process has left, gets a 503.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
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
            await self._app(scope, receive, send if started else send_closing)
        except asyncio.CancelledError:
            if started or not self.draining:
                raise
            problem = NotReady("The process ends before the request could be answered.", retry_after_s=1)
            await respond(problem_answer(problem))(scope, receive, send_closing)


class HttpServer(uvicorn.Server):
    """uvicorn, but on SIGTERM or SIGINT the listeners stay open for ``drain_ms`` before they close.

    A second signal closes at once. ``relays`` are signals that mean one of the two. Whatever hangs, the process
    ends within ``shutdown_timeout_ms``: that is as safe as a kill.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_ms: int,
        shutdown_timeout_ms: int,
        on_drain: Callable[[], None],
        relays: Mapping[signal.Signals, signal.Signals],
        proxy_headers: ProxyHeaders | None,
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_ms / 1000
        self._shutdown_timeout_s = shutdown_timeout_ms / 1000
        self._on_drain = on_drain
        self._relays = relays
        self._proxy_headers = proxy_headers
        self._draining = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening; raises ``ListenAddressInUse`` if another process has done so since the address was
        bound."""
        assert sockets is not None
        listeners = [listener for listener in sockets if not is_unix_listener(listener)]
        addresses = [HostInfo(*listener.getsockname()[:2]) for listener in listeners]
        await super().startup([])
        if self._proxy_headers is None:
            await self._serve_direct(sockets)
        else:
            self._serve_counted(sockets, self._proxy_headers)
        for listener, address in zip(listeners, addresses, strict=True):
            # uvloop does not report that, and closes the socket.
            if not _listens(listener):
                await self.lifespan.shutdown()
                raise cannot_listen(address, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
        collect_garbage_rarely()

    async def _serve_direct(self, listeners: Iterable[socket.socket]) -> None:
        """Serve sockets, with TLS those of TCP only; uvicorn would speak it on every socket."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            if self.config.ssl is not None and not is_unix_listener(listener):
                self._serve_counted([listener], None)
                continue
            server = await loop.create_server(self._make_protocol, sock=listener, backlog=self.config.backlog)
            self.servers.append(server)

    def _serve_counted(self, listeners: Iterable[socket.socket], headers: ProxyHeaders | None) -> None:
        """Serve connections that begin with a header or a handshake, before which asyncio's servers show none."""
        limits: Limits = self.config.http_protocol_class.limits  # type: ignore[attr-defined]
        for listener in listeners:
            tls = None if is_unix_listener(listener) else self.config.ssl
            with contextlib.suppress(OSError):
                listener.listen(self.config.backlog)
            listening = CountingListener(listener, limits, headers, partial(self._take_over, tls))
            listening.start()
            self.servers.append(listening)  # type: ignore[arg-type]

    async def _take_over(
        self, tls: ssl.SSLContext | None, connection: socket.socket, client: Client | None, held: Held
    ) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            partial(self._make_protocol, client, held),
            connection,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _MOST_HANDSHAKE_S,
        )

    def _make_protocol(self, client: Client | None = None, held: Held | None = None) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        if client is not None:
            protocol.proxied_client = client
        protocol.accepted = held
        return protocol  # type: ignore[no-any-return]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close listeners and connections, and let the application end."""
        await super().shutdown(sockets)
        if self.force_exit:
            # A forced exit in uvicorn skips that, and logs a traceback of what it cancels.
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle the signals while serving."""
        for relay in self._relays:
            signal.signal(relay, lambda sig, frame: self.handle_exit(self._relays[signal.Signals(sig)], frame))
        with super().capture_signals():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; called by the signal handler."""
        if self._draining:
            self.force_exit = self.should_exit = True
            return
        self._draining = True
        self._limit()
        self._on_drain()
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


def _listens(listener: socket.socket) -> bool:
    try:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def serve(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    *,
    drain_ms: int,
    shutdown_timeout_ms: int,
    on_drain: Callable[[], None],
    protocol: type[asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
    relays: Mapping[signal.Signals, signal.Signals] = MappingProxyType({}),
    proxy_headers: ProxyHeaders | None = None,
) -> None:
    """Serve until a signal ends it, then drain and return; raises ``ListenAddressInUse``.

    With ``tls``, listeners of TCP speak HTTPS only. ``relays`` are signals that mean SIGTERM or SIGINT.
    """
    draining = Draining(app)

    def begin_to_drain() -> None:
        draining.draining = True
        on_drain()

    config = uvicorn.Config(
        draining,
        loop="uvloop",
        http=protocol,
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
    HttpServer(config, drain_ms, shutdown_timeout_ms, begin_to_drain, relays, proxy_headers).run(
        sockets=[*listeners, *duplicates]
    )
