"""The metrics of several processes combined: how they are summed, and how they are written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import chain

import msgspec
from prometheus_client import Metric

_Combine = Callable[[float, float], float]
_Labels = tuple[tuple[str, str], ...]

_NOT_SUMMED: dict[str, _Combine] = {
    "forebay_router_ready": min,
    "forebay_router_worker_live": min,
    "forebay_router_unheld_partitions": max,
    "forebay_router_hedge_delay_seconds": max,
    "forebay_router_build_info": max,
    "forebay_ready": min,
    "forebay_storage_fault": max,
    "forebay_group_generation": max,
    "forebay_build_info": max,
    "forebay_state_disk_size_bytes": max,
    "forebay_state_disk_free_bytes": min,
    "process_start_time_seconds": min,
    "process_max_fds": min,
}
"""For these gauges, only the worst process's figure is meaningful."""


def summed(several: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Each metric once, its figures summed over all processes; the worst if a sum is meaningless."""
    families: dict[str, Metric] = {}
    figures: dict[str, dict[tuple[str, _Labels], float]] = {}
    for metric in chain.from_iterable(several):
        families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
        known = figures.setdefault(metric.name, {})
        combine: _Combine = _NOT_SUMMED.get(metric.name, operator.add)
        for sample in metric.samples:
            key = sample.name, tuple(sample.labels.items())
            known[key] = combine(known[key], sample.value) if key in known else sample.value
    for name, known in figures.items():
        for (sample_name, labels), value in known.items():
            families[name].add_sample(sample_name, dict(labels), value)
    return list(families.values())


def counted(metrics: Iterable[Metric]) -> list[Metric]:
    """Those that only grow, and outlive the process that counted them; what is counted of a replica does not."""
    return [metric for metric in metrics if metric.type in ("counter", "histogram") and not _of_replica(metric)]


def of_process(metric: Metric, process: int) -> Metric:
    """The metric, with the process's number as a label if it is about replicas: two may have one partition's."""
    if not _of_replica(metric):
        return metric
    labelled = Metric(metric.name, metric.documentation, metric.type)
    for sample in metric.samples:
        labelled.add_sample(sample.name, {**sample.labels, "process": str(process)}, sample.value)
    return labelled


def _of_replica(metric: Metric) -> bool:
    return any("partition" in sample.labels for sample in metric.samples)


def encoded(metrics: Iterable[Metric]) -> bytes:
    """Metrics for another process."""
    return msgspec.json.encode([(m.name, m.documentation, m.type, [s[:3] for s in m.samples]) for m in metrics])


def decoded(content: bytes) -> list[Metric]:
    """The inverse of ``encoded``."""
    found = []
    for name, documentation, kind, samples in msgspec.json.decode(content):
        metric = Metric(name, documentation, kind)
        for sample in samples:
            metric.add_sample(*sample)
        found.append(metric)
    return found
