"""``forebay worker``."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from forebay.authentication import make_authenticator
from forebay.cli import settings_options
from forebay.errors import SettingError
from forebay.listen_addresses import tcp_addresses, unix_addresses
from forebay.logs import configure_logs
from forebay.networks import MAX_PORT
from forebay.settings import WorkerSettings, settings_for
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bound, warn_of_anonymous_access
from forebay_web.processes.parent import RELAYED, run_processes
from forebay_web.processes.process_slot import SINGLE_PROCESS, ProcessSlot
from forebay_web.server import Service, advertised, allow_open_files, serve
from forebay_web.tls import listener_tls
from forebay_worker.state.layout import state_dir_of, unused_state

if TYPE_CHECKING:
    from forebay_worker.worker import Worker

log = logging.getLogger(__name__)

DIVIDED = frozenset(
    {
        "apply_records_per_second",
        "restore_processes",
        "snapshot_bytes_per_second",
        "rocksdb_block_cache_bytes",
        "rocksdb_write_buffer_bytes",
        "max_in_flight",
        "request_memory_bytes",
        "max_connections",
        "max_event_streams",
    }
)
"""The settings that are the whole worker's."""
_LEAST = {setting.name: setting.least for setting in settings_for("worker")}
_SWITCH_INTERVAL_S = 0.0002
"""Why: by default a read that arrives while another thread runs waits five milliseconds for Python's lock."""


def shares(settings: WorkerSettings) -> list[WorkerSettings]:
    """The settings of each process; raises ``SettingError`` if the worker's cannot be divided."""
    for address in unix_addresses(settings.listen):
        raise SettingError(
            f"listen has {address}, but processes is {settings.processes}: each process answers for its own "
            "tasks, so there is no socket of them all. Let a router listen there, or set processes to 1."
        )
    return [_share(settings, number) for number in range(settings.processes)]


def _share(settings: WorkerSettings, number: int) -> WorkerSettings:
    divided = {name: _part(name, getattr(settings, name), settings.processes) for name in DIVIDED}
    return replace(
        settings,
        **divided,
        listen=tuple(_moved(address, number) for address in tcp_addresses(settings.listen)),
        advertise=None if settings.advertise is None else _moved(settings.advertise, number),
        state_dir=state_dir_of(settings.state_dir, number),
    )


def _part(name: str, whole: int, processes: int) -> Any:
    """A process's part, rounded up: 0 means something else than little, where it is allowed."""
    return max(_LEAST[name], -(-whole // processes))


def _moved(address: HostInfo, number: int) -> HostInfo:
    port = address.port + number
    if port > MAX_PORT:
        raise SettingError(
            f"The processes listen on successive ports from {address} on, and {port} is none. Give a lower port "
            "with --listen and --advertise, or fewer --processes."
        )
    return HostInfo(address.host, port)


@click.command()
@settings_options("worker")
def worker(values: dict[str, Any]) -> None:
    """Keep a share of the application's stores and answer reads from them."""
    settings = WorkerSettings(**values)
    configure_logs(settings.log_level, settings.log_format)
    if settings.processes == 1:
        run(settings, SINGLE_PROCESS)
    else:
        run_processes("worker", run, shares(settings))


def run(settings: WorkerSettings, place: ProcessSlot) -> None:
    """Run a worker's process until a signal ends it; raises ``ForebayError`` if it cannot start."""
    # The web stack takes a while to import; wrong settings should be reported before that.
    from forebay_web.fast_path.guard import guarded
    from forebay_web.fast_path.protocol import make_protocol
    from forebay_web.hosts import allowed_hosts
    from forebay_web.limits import Limits
    from forebay_worker.app import make_app
    from forebay_worker.fast_path import WorkerFastPath
    from forebay_worker.metrics import WorkerMetrics
    from forebay_worker.worker import Worker

    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    authenticator = make_authenticator(settings)
    tls = listener_tls(settings.tls_certificate_file, settings.tls_key_file)
    host = advertised(settings.listen, settings.advertise)
    allow_open_files()
    limits = Limits(settings)
    with contextlib.ExitStack() as stack:
        listeners = stack.enter_context(bound(settings.listen, settings.socket_group))
        if authenticator is None:
            warn_of_anonymous_access(settings.listen)

        def start() -> Service:
            running = Worker(settings, host, limits)
            stack.callback(_stop, running)
            metrics = WorkerMetrics(running)
            hosts = allowed_hosts(settings.listen, settings.allowed_hosts, running.host)
            app = make_app(running, metrics, authenticator, hosts, place)
            if place.number == 0:
                _warn_of_unused_state(settings, running.topology.application_id, place.processes)
            running.start()
            log.info("worker %s serves %s", running.host, running.topology.application_id)
            protocol = make_protocol(
                "worker",
                guarded(WorkerFastPath(running, metrics), authenticator, metrics.refusals),
                hosts,
                settings.cors_allow_origins,
                lambda: running.draining,
                limits,
            )
            return Service(app, protocol, running.drain)

        serve(
            start,
            listeners,
            limits,
            listens_first=True,
            drain_ms=settings.drain_ms,
            shutdown_timeout_ms=settings.shutdown_timeout_ms,
            tls=tls,
            relays={} if place.is_single else RELAYED,
        )


def _warn_of_unused_state(settings: WorkerSettings, application_id: str, processes: int) -> None:
    for path in unused_state(settings.state_dir, application_id, processes):
        log.warning(
            "%s is the state of one process more than the %d that there are now, and nothing there is used. Start "
            "with more --processes to use it, or remove it.",
            path,
            processes,
        )


def _stop(running: Worker) -> None:
    running.stop()
    log.info("worker %s has left its group and closed its stores", running.host)
