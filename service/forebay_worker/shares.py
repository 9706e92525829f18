"""What each of a worker's processes gets: an address and a state directory of its own, a part of the limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forebay.errors import SettingError
from forebay.listen_addresses import tcp_addresses, unix_addresses
from forebay.ports import MAX_PORT
from forebay.settings import WorkerSettings, settings_for
from forebay.streams_metadata import HostInfo
from forebay_worker.state.process_directories import state_dir_of

DIVIDED = frozenset(
    {
        "apply_records_per_second",
        "restore_processes",
        "rocksdb_block_cache_bytes",
        "rocksdb_write_buffer_bytes",
        "max_in_flight",
        "request_memory_bytes",
        "max_connections",
        "max_event_streams",
    }
)
"""The settings that are the whole worker's."""


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


_LEAST = {setting.name: setting.least for setting in settings_for("worker")}


def _moved(address: HostInfo, number: int) -> HostInfo:
    port = address.port + number
    if port > MAX_PORT:
        raise SettingError(
            f"The processes listen on successive ports from {address} on, and {port} is none. Give a lower port "
            "with --listen and --advertise, or fewer --processes."
        )
    return HostInfo(address.host, port)
