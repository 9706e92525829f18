"""``forebay router``."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import click

from forebay.authentication import make_authenticator
from forebay.cli import settings_options
from forebay.listen_addresses import tcp_addresses, unix_addresses
from forebay.logs import configure_logs
from forebay.settings import RouterSettings
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind, bound, cannot_listen, warn_of_anonymous_access
from forebay_web.processes.parent import RELAYED, run_processes
from forebay_web.processes.process_slot import SINGLE_PROCESS, ProcessSlot
from forebay_web.server import Service, allow_open_files, serve
from forebay_web.tls import listener_tls

log = logging.getLogger(__name__)


@contextlib.contextmanager
def reserved(settings: RouterSettings) -> Iterator[list[socket.socket]]:
    """Claim the addresses of TCP until the end of the block. Yields the Unix sockets, which processes inherit."""
    with contextlib.ExitStack() as stack:
        for address in tcp_addresses(settings.listen):
            stack.enter_context(claim(address))
        yield stack.enter_context(bound(unix_addresses(settings.listen), settings.socket_group))


def claim(listen: HostInfo) -> socket.socket:
    """Reserve an address for processes that share it; raises ``ListenAddressInUse``.

    A shared address admits every process of the same user that shares it too. So the parent first binds it
    exclusively; and while the processes start and none listens yet, an abstract Unix socket, in the same network
    namespace as the port, keeps out a second router.
    """
    with bind(listen) as bound:
        # The same under any name of the address.
        host, port = bound.getsockname()[:2]
    claimed = socket.socket(socket.AF_UNIX)
    try:
        claimed.bind(f"\0forebay-router/{host}:{port}")
    except OSError as error:
        claimed.close()
        raise cannot_listen(listen, error) from None
    return claimed


@click.command()
@settings_options("router")
def router(values: dict[str, Any]) -> None:
    """Answer every read by asking the worker that best meets its tolerance."""
    settings = RouterSettings(**values)
    configure_logs(settings.log_level, settings.log_format)
    if settings.processes == 1:
        run(settings, SINGLE_PROCESS)
        return
    with reserved(settings) as listeners:
        run_processes("router", run, [settings] * settings.processes, listeners)


def run(settings: RouterSettings, place: ProcessSlot, *inherited: socket.socket) -> None:
    """Run a router's process until a signal ends it; raises ``ForebayError`` if it cannot start.

    One of several listens on the Unix sockets that it has ``inherited``: they have no SO_REUSEPORT.
    """
    # The web stack takes a while to import; wrong settings should be reported before that.
    from forebay_router.app import make_app
    from forebay_router.fast_path import RouterFastPath
    from forebay_router.metrics import RouterMetrics
    from forebay_router.router import Router
    from forebay_web.fast_path.guard import guarded
    from forebay_web.fast_path.protocol import make_protocol
    from forebay_web.hosts import allowed_hosts

    authenticator = make_authenticator(settings)
    tls = listener_tls(settings.tls_certificate_file, settings.tls_key_file)
    allow_open_files()
    own = settings.listen if place.is_single else tcp_addresses(settings.listen)
    with bound(own, settings.socket_group, shared=not place.is_single) as listeners:
        if authenticator is None:
            warn_of_anonymous_access(settings.listen)
        running = Router(settings)
        log.info("router listens on %s", ", ".join(map(str, settings.listen)))
        metrics = RouterMetrics(running)
        hosts = allowed_hosts(settings.listen, settings.allowed_hosts)
        protocol = make_protocol(
            "router",
            guarded(RouterFastPath(running, metrics), authenticator, metrics.refusals),
            hosts,
            settings.cors_allow_origins,
            lambda: running.draining,
            running.limits,
        )
        service = Service(make_app(running, metrics, authenticator, hosts, place), protocol, running.drain)
        serve(
            lambda: service,
            [*listeners, *inherited],
            running.limits,
            drain_ms=settings.drain_ms,
            shutdown_timeout_ms=settings.shutdown_timeout_ms,
            tls=tls,
            relays={} if place.is_single else RELAYED,
        )
