"""``forebay dev``."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from forebay.errors import SettingError
from forebay.file_access import cause
from forebay.output import print_line
from forebay.streams_metadata import HostInfo, is_loopback
from forebay_web.listeners import bind
from forebay_worker.dev.cluster import FIRST, STORE, DevCluster

_BATCH_INTERVAL_S = 1.0
_DEFAULT_LISTEN = "127.0.0.1:8080"


@click.command()
@click.option("--listen", default=_DEFAULT_LISTEN, show_default=True, help="Address of the router.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 8), help="How many to start.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, readable=False, path_type=Path),
    help="Where changelog, state and logs are kept; by default a temporary one, removed at the end.",
)
def dev(listen: str, workers: int, directory: Path | None) -> None:
    """Run a cluster with a few keys on this machine, without Spark, until Ctrl-C."""
    address = _address(listen)
    # Taken already, it is better said before anything starts.
    bind(address).close()
    with _directory(directory) as place:
        # Where a shell has started this in the background, interrupts are ignored until they are asked for.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        _run(DevCluster(place, address, workers))


def _run(cluster: DevCluster) -> None:
    try:
        cluster.start()
        print_line(_introduction(cluster))
        _write(cluster)
    except KeyboardInterrupt:
        print_line("Ending.")
        cluster.stop()
    finally:
        cluster.kill()


def _write(cluster: DevCluster) -> None:
    """Write a batch a second, for ever."""
    while True:
        time.sleep(_BATCH_INTERVAL_S)
        cluster.stream.order()
        for process in cluster.check():
            print_line(f"{process.ended()}", to_stderr=True)


def _introduction(cluster: DevCluster) -> str:
    url = "" if str(cluster.router) == _DEFAULT_LISTEN else f"--url http://{cluster.router} "
    workers = zip(cluster.workers, cluster.processes, strict=False)
    return "\n".join(
        [
            f"The router answers at http://{cluster.router}, its console is http://{cluster.router}/console",
            *(f"A worker is at http://{host}, process {process.pid}" for host, process in workers),
            f"The store {STORE} has {', '.join(FIRST)}; ann orders something every second.",
            f"Changelog, state and logs are in {cluster.directory}",
            "",
            "Try in another terminal:",
            f"    curl http://{cluster.router}/v1/stores/{STORE}/keys/ann",
            f"    forebay query {url}--follow {STORE} ann",
            f"    forebay status {url}".rstrip(),
            "Ctrl-C ends all of it.",
        ]
    )


def _address(listen: str) -> HostInfo:
    try:
        address = HostInfo.parse(listen)
    except ValueError as error:
        raise SettingError(f"--listen: {error}.") from None
    if not is_loopback(address.host):
        raise SettingError(
            f"--listen: other machines may reach {address}, and this cluster answers everybody. Give an address "
            f"of loopback, such as {_DEFAULT_LISTEN}."
        )
    return address


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """The directory that was given, or a temporary one."""
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"--directory: {given} cannot be created: {cause(error, given)}.") from None
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="forebay-dev-") as name:
        yield Path(name)
