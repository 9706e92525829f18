"""Against Kafka Streams on the same broker and topics: restores, reads, and the return of a killed instance."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.comparison import Effort
from bench.credentials import worker_options
from bench.deployment import KEYS, STORE, ask, deployment, written_to
from bench.figures import Row, Target, interleaved
from bench.kafka import RECORDS, Restored, application, restore, small_records
from bench.process import Family
from bench.records import records
from bench.single_key import rate
from bench.table_service import TableService, compiled
from bench.wrk import Requests

from examples.broker import Broker
from tests.support.cluster import Cluster

TASKS = 64
_RESTORE_PROCESSES = 2
_SESSION_TIMEOUT_MS = 6_000
_WARMING_UP = Effort(1, 10, Path())


def kafka_streams(effort: Effort) -> list[Row]:
    classes = compiled(effort.directory)
    with Broker(effort.directory / "kafka") as broker:
        return [
            *_restoration(effort, broker, classes),
            *_reads(effort, broker, classes),
            _return(effort, broker, classes),
        ]


def _restoration(effort: Effort, broker: Broker, classes: Path) -> list[Row]:
    directory = effort.directory / "restoration"
    directory.mkdir()
    with deployment(directory, kafka=broker.url, topology_text=application("restoration")) as cluster:
        cluster.put(STORE, small_records())
        ours, theirs = [], []
        for number in range(effort.rounds):
            ours.append(restore(cluster, _RESTORE_PROCESSES))
            with _table(cluster, broker, classes, f"restoration-{number}") as service:
                theirs.append(_restored(service))
    what = f"full restore of {RECORDS:,} small records from Kafka, {_RESTORE_PROCESSES} processes"
    against = "Kafka Streams, 2 threads"

    def row(what: str, unit: str, figure: Callable[[Restored], float], target: Target | None = None) -> Row:
        return Row(what, unit, tuple(map(figure, ours)), against, tuple(map(figure, theirs)), target)

    return [
        row(what, "records/s", lambda restored: restored.records_per_second, Target(1)),
        row("processor time that it takes, in all processes", "s", lambda restored: restored.processor_s),
        row("the most memory that it takes, of all processes", "MB", lambda restored: restored.max_resident_mb),
    ]


def _restored(service: TableService) -> Restored:
    service.start()
    family = Family(service.pid)
    restored = service.restored(family.sample)
    used_s = family.processor_s
    return Restored(restored.records / restored.seconds, used_s, used_s, family.max_resident_mb)


def _reads(effort: Effort, broker: Broker, classes: Path) -> list[Row]:
    directory = effort.directory / "reads"
    directory.mkdir()
    with deployment(directory, kafka=broker.url, topology_text=application("reads")) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        worker = cluster.start_worker(None, *worker_options(directory))
        key = next(iter(rows)).decode()
        with _table(cluster, broker, classes, "reads") as service, written_to(cluster, rows):
            service.start()
            service.restored()
            # A restored partition is not at once one that may be read.
            answers(service.address, [f"/keys/{key}"])
            requests = Requests(f"/v1/stores/{STORE}/keys/{key}"), Requests(f"/keys/{key}")
            # The just-in-time compiler learns from some hundred thousand requests.
            rate(_WARMING_UP, service.address, requests[1])()
            ours, theirs = interleaved(
                effort.rounds, rate(effort, worker, requests[0]), rate(effort, service.address, requests[1])
            )
    return [
        Row(
            "worker, one key, lag attached",
            "requests/s",
            ours,
            "Kafka Streams + Undertow, one HTTP thread",
            theirs,
        )
    ]


def _return(effort: Effort, broker: Broker, classes: Path) -> Row:
    directory = effort.directory / "return"
    directory.mkdir()
    options = ("--session-timeout-ms", str(_SESSION_TIMEOUT_MS))
    with deployment(directory, kafka=broker.url, topology_text=application("return", TASKS)) as cluster:
        rows = records(KEYS)
        cluster.put(STORE, rows)
        spec = cluster.topology.stores[STORE]
        keys = {cluster.partition(spec, key): key.decode() for key in rows}.values()
        paths = [f"/v1/stores/{STORE}/keys/{key}" for key in keys], [f"/keys/{key}" for key in keys]
        worker = cluster.start_worker(None, *options)
        with _table(cluster, broker, classes, "return") as service:
            service.start()
            service.restored()
            answers(service.address, paths[1])

            def ours() -> float:
                cluster.kill(worker)
                begun = time.monotonic()
                cluster.start_worker(worker, *options, ready=False)
                return answers(worker, paths[0]) - begun

            def theirs() -> float:
                service.end(signal.SIGKILL)
                begun = time.monotonic()
                service.start()
                return answers(service.address, paths[1]) - begun

            of_ours, of_theirs = interleaved(effort.rounds, ours, theirs)
    what = f"killed (-9) and started again with {TASKS} tasks in place: a key of each is answered after"
    return Row(what, "s", of_ours, "Kafka Streams, static member", of_theirs, Target(1, at_least=False))


def answers(address: str, paths: Sequence[str]) -> float:
    """When each of these paths has been answered: a restored partition may not be read at once."""
    until = time.monotonic() + 120
    for path in paths:
        while ask(address, path)[0] != 200:
            assert time.monotonic() < until, f"{address}{path} is not answered"
            time.sleep(0.005)
    return time.monotonic()


def _table(cluster: Cluster, broker: Broker, classes: Path, group: str) -> TableService:
    [spec] = cluster.topology.stores.values()
    # Workers have the group of the application's own name.
    directory = cluster.directory / f"table-{group}"
    return TableService(classes, directory, broker.address, spec.topic, spec.partitions)
