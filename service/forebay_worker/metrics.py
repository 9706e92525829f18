"""A worker's metrics: plain integers counted along the way, converted to Prometheus' form when scraped."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from rocksdict import DbClosedError

from forebay import __version__
from forebay.clock import boot_ms
from forebay_web.histogram import Histogram
from forebay_worker.state.rocksdb import RocksDbStore

if TYPE_CHECKING:
    from forebay_worker.worker import Worker

_REPLICA = ["store", "partition"]
_gauge = partial(GaugeMetricFamily, labels=_REPLICA)
_counter = partial(CounterMetricFamily, labels=_REPLICA)
_PROCESS = ProcessCollector(registry=None)
_ANSWER_US = (
    *(25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 10_000_000, 30_000_000),
)


class WorkerMetrics(Collector):
    """Counts reads, and collects the rest from the worker at each scrape."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.reads: dict[str, Counter[int]] = defaultdict(Counter)
        """Answers by route and status."""
        self.answer_us: dict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(_ANSWER_US))
        """How long answers took, by route and store; event streams not at all."""
        self.refusals: Counter[int] = Counter()
        """Requests that the authenticator refused, by status."""

    def count(self, route: str, status: int) -> None:
        """Count an answer."""
        self.reads[route][status] += 1

    def count_answer(self, route: str, store: str, status: int, begun_s: float) -> None:
        """Count an answer about a store, if there is one of this name, and the time since ``begun_s``."""
        self.reads[route][status] += 1
        # Clients may name any number of stores that do not exist.
        known = store if store in self._worker.topology.stores else ""
        self.answer_us[route, known].observe((perf_counter() - begun_s) * 1e6)

    def collect(self) -> Iterator[Metric]:
        """Every metric, for the scraper."""
        return (metric for metric in self.steps() if metric is not None)

    def steps(self) -> Iterator[Metric | None]:
        """The same with a step for each replica, since there may be thousands."""
        yield from self._answers()
        yield from self._replicas()
        yield self._snapshots()
        yield from self._sizes()
        worker = self._worker
        yield GaugeMetricFamily("forebay_ready", "1 if /readyz says 200.", worker.readiness() is None)
        storage_fault = worker.tasks.storage_fault is not None
        yield GaugeMetricFamily(
            "forebay_storage_fault", "1 if the machine refuses what the worker needs.", storage_fault
        )
        yield from worker.limits.metrics("forebay")
        generation = worker.metadata.map.generation.number
        yield GaugeMetricFamily("forebay_group_generation", "Newest group generation known.", generation)
        build = GaugeMetricFamily(
            "forebay_build_info", "1. Its labels say what runs.", labels=["version", "topology"]
        )
        build.add_metric([__version__, worker.topology.fingerprint], 1)
        yield build
        yield from _PROCESS.collect()

    def _answers(self) -> Iterator[Metric | None]:
        reads = CounterMetricFamily("forebay_reads", "Answers to reads.", labels=["route", "status"])
        for route, statuses in list(self.reads.items()):
            for status, count in list(statuses.items()):
                reads.add_metric([route, str(status)], count)
        refusals = CounterMetricFamily(
            "forebay_auth_failures", "Requests that authentication refused.", labels=["status"]
        )
        for status, count in list(self.refusals.items()):
            refusals.add_metric([str(status)], count)
        took = HistogramMetricFamily(
            "forebay_answer_seconds",
            "Time that the worker spent on an answer, a wait for a bound included.",
            labels=["route", "store"],
        )
        for labels, histogram in sorted(self.answer_us.items()):
            histogram.add_to(took, [*labels], 1_000_000)
            yield None
        from_disk = CounterMetricFamily(
            "forebay_disk_reads",
            "Keys and beginnings of lists read from disk, by store.",
            labels=["store"],
        )
        for store, count in list(self._worker.disk_reads.counts.items()):
            from_disk.add_metric([store], count)
        yield from (reads, refusals, took, from_disk)
        yield from self._worker.admission.served.collect("forebay_served")

    def _snapshots(self) -> Metric | None:
        if self._worker.saver is None:
            return None
        saved = _gauge(
            "forebay_snapshot_timestamp_seconds",
            "Unix time of the newest snapshot saved of each partition that is active here.",
        )
        for (store, partition), moment_epoch_ms in list(self._worker.saver.saved_epoch_ms.items()):
            saved.add_metric([store, str(partition)], moment_epoch_ms / 1000)
        return saved

    def _replicas(self) -> Iterator[Metric | None]:
        record_lag = _gauge("forebay_record_lag", "Records behind the log's end.")
        time_lag = _gauge("forebay_time_lag_seconds", "Time behind the log.")
        open_transaction = _gauge(
            "forebay_open_transaction_seconds",
            "How long a transaction has been open at the log's end. 0 if none is.",
        )
        age = _gauge("forebay_age_seconds", "Time behind the source.")
        failed = _gauge("forebay_replica_failed", "1 if its records cannot be applied.")
        role = GaugeMetricFamily("forebay_replica_role", "1 for the role held.", labels=[*_REPLICA, "role"])
        applied = _counter("forebay_records_applied", "Changelog records applied.")
        skipped = _counter("forebay_records_skipped", "Records of external stores that do not fit their codecs.")
        ahead = _counter(
            "forebay_records_ahead",
            "Records whose window or session ends too far after their timestamp to move stream time.",
        )
        restored = _gauge("forebay_restored_records", "Records restored by the bulk restore under way.")
        pace = _gauge("forebay_restored_records_per_second", "Its pace since it began.")
        left = _gauge("forebay_restore_seconds_left", "Seconds until that restore is done, at its pace so far.")
        for (store, partition), replica in sorted(self._worker.tasks.replicas.items()):
            labels = [store, str(partition)]
            held, lag = self._worker.admission.proven_lag(replica)
            role.add_metric([*labels, held], 1)
            applied.add_metric(labels, replica.records.applied)
            failed.add_metric(labels, int(replica.stopped_by is not None))
            open_transaction.add_metric(labels, replica.open_transaction_ms(boot_ms()) / 1000)
            if replica.spec.retention_ms is not None:
                ahead.add_metric(labels, replica.records.ahead)
            if replica.spec.external:
                skipped.add_metric(labels, replica.records.skipped)
            restoration = self._worker.tasks.bulk_restore.restoring(replica)
            if restoration is not None:
                restored.add_metric(labels, restoration.records)
                pace.add_metric(labels, restoration.records_per_second)
                if restoration.seconds_left is not None:
                    left.add_metric(labels, restoration.seconds_left)
            if lag.record_lag is not None:
                record_lag.add_metric(labels, lag.record_lag)
            if lag.time_lag_ms is not None:
                time_lag.add_metric(labels, lag.time_lag_ms / 1000)
            if lag.age_ms is not None:
                age.add_metric(labels, lag.age_ms / 1000)
            yield None
        yield from (record_lag, time_lag, open_transaction, age, role, applied, ahead, skipped)
        yield from (failed, restored, pace, left)

    def _sizes(self) -> Iterator[Metric | None]:
        disk = _gauge("forebay_store_disk_bytes", "Bytes of a store's files.")
        buffers = _gauge("forebay_store_write_buffer_bytes", "Bytes of a store that are not in its files yet.")
        keys = _gauge("forebay_store_keys", "An estimate of a store's keys. Each window and version counts.")
        for (store, partition), replica in sorted(self._worker.tasks.replicas.items()):
            labels = [store, str(partition)]
            # One that is being rebuilt may be closed, or closing just now.
            with contextlib.suppress(DbClosedError, RuntimeError):
                store_held = replica.view.store
                if isinstance(store_held, RocksDbStore):
                    size = store_held.size()
                    disk.add_metric(labels, size.disk_bytes)
                    buffers.add_metric(labels, size.write_buffer_bytes)
                    keys.add_metric(labels, size.keys)
            yield None
        yield from (disk, buffers, keys)
        cached = self._worker.memory.block_cache_bytes
        yield GaugeMetricFamily("forebay_block_cache_bytes", "Bytes of the stores' block cache in use.", cached)
        with contextlib.suppress(OSError):
            total, free = self._worker.disk()
            yield GaugeMetricFamily("forebay_state_disk_size_bytes", "Size of the state directory's disk.", total)
            yield GaugeMetricFamily("forebay_state_disk_free_bytes", "Bytes of it that are free.", free)
