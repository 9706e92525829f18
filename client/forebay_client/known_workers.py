"""What a partition-aware client knows of the workers: the newest map, and what their answers have shown.

It does no I/O and polls nobody. Lags are known from answers and refusals alone.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from forebay.lag import UNKNOWN_LAG, UNLIMITED, Lag, Tolerance
from forebay.listen_addresses import is_unix
from forebay.routing.candidates import Holder, candidates
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import NO_GENERATION, ClusterMap, HostInfo
from forebay.task_ids import TopicPartition
from forebay.wire.parameters import Prefer

_MAP_MAX_AGE_S = 10.0
_LEAST_REFRESH_INTERVAL_S = 0.1
_ROLE_CHECK_INTERVAL_S = 1.0
"""Of an active that answers as standby: its lease may have run out, in which case no newer map is there yet."""
_REPORT_MAX_AGE_S = 5.0
"""As ``lag_report_max_age_ms`` of a router."""
_LEAST_OUTAGE_S = 1.0
_MOST_OUTAGE_S = 30.0
_PRESUMED_LAG = Lag(0, 0, 0)
"""Why: a worker enforces the bounds, so trying one of which nothing is known costs a hop at most."""
_MOST_SERVERS = 4


class _Report(NamedTuple):
    """The last known state of one replica."""

    role: str
    lag: Lag
    at_s: float


class _Outage(NamedTuple):
    """A worker that could not be reached: when one read tries it again, and how long it was left alone."""

    until_s: float
    lasts_s: float
    is_probed: bool = False


class KnownWorkers:
    """The workers of one application; threads may share it, and a forked process has a copy.

    ``urls`` are those of any of them, or of routers. Workers are reached at the address that they advertise, with
    the scheme of the first of ``urls`` that is no Unix socket.
    """

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.sockets = tuple(url for url in urls if is_unix(url))
        self.map = ClusterMap()
        self._seeds = tuple(urls)
        of_tcp = next((url for url in urls if not is_unix(url)), "http:")
        self._scheme = of_tcp.partition(":")[0]
        self._clock = clock
        self._local: dict[HostInfo, str] = {}
        """The workers behind the Unix sockets, which are on this machine."""
        self._reports: dict[tuple[str, int, HostInfo], _Report] = {}
        self._outages: dict[HostInfo, _Outage] = {}
        self._refreshed_s = self._due_s = -math.inf
        self._choose = random.Random()

    @property
    def has_map(self) -> bool:
        """Whether any assignment of the group is known."""
        return self.map.generation != NO_GENERATION

    @property
    def is_due(self) -> bool:
        """Whether the map should be read anew: it is old, or an answer has shown that it is out of date."""
        return not self.has_map or self._clock() >= self._due_s

    def on_outdated(self, interval_s: float = _LEAST_REFRESH_INTERVAL_S) -> None:
        """An answer contradicts the map, which is read anew, this long after the last time at the earliest."""
        self._due_s = min(self._due_s, self._refreshed_s + interval_s)

    def on_refresh(self) -> None:
        """The map is being read: other reads use the one that is known."""
        self._refreshed_s = self._clock()
        self._due_s = self._refreshed_s + _MAP_MAX_AGE_S

    def adopt(self, newer: ClusterMap, local: Mapping[str, str]) -> None:
        """Take a map unless it is older, and the URL of each local worker by its process id."""
        if newer.generation < self.map.generation:
            return
        if newer.generation > self.map.generation:
            # Roles have changed, and whoever is in a new assignment was there when it was made.
            self._reports, self._outages = {}, {}
        self.map = newer
        self._local = {
            metadata.host: local[process_id]
            for metadata in newer.hosts
            for process_id in metadata.process_ids & local.keys()
        }

    def url(self, host: HostInfo) -> str:
        """Where a worker is reached."""
        return self._local.get(host) or f"{self._scheme}://{host}"

    def servers(self) -> list[str]:
        """Servers to ask for what each of them knows: some workers, others each time, then the seeds."""
        hosts = [metadata.host for metadata in self.map.hosts if metadata.host not in self._outages]
        self._choose.shuffle(hosts)
        learned = [self.url(host) for host in hosts[: _MOST_SERVERS - 1]]
        return [*learned, *(url for url in self._seeds if url not in learned)]

    def candidates(self, spec: StoreSpec, partition: int, parameters: Mapping[str, Any]) -> tuple[HostInfo, ...]:
        """The workers to ask for a partition, best first, as a router would."""
        active, standbys = self._holders(spec, partition)
        hosts = {*standbys, *([] if active is None else [active])}
        tolerance = Tolerance(*(parameters.get(bound) for bound in Tolerance._fields))
        prefer: Prefer = "active" if parameters.get("require_active") else parameters.get("prefer") or "active"
        unknown = _PRESUMED_LAG if prefer == "any" else UNKNOWN_LAG
        return candidates(
            [
                self._holder(host, "active" if host == active else "standby", spec, partition, unknown)
                for host in hosts
            ],
            spec.default_tolerance if tolerance == UNLIMITED else tolerance,
            prefer,
            self._choose,
        )

    def _holder(self, host: HostInfo, role: str, spec: StoreSpec, partition: int, unknown: Lag) -> Holder:
        report, lag = self._reports.get((spec.name, partition, host)), unknown
        if report is not None and self._clock() - report.at_s <= _REPORT_MAX_AGE_S:
            role, lag = report.role, report.lag
        return Holder(host, role, lag, live=self._is_live(host), own_host=host in self._local)

    def _is_live(self, host: HostInfo) -> bool:
        outage = self._outages.get(host)
        return outage is None or self._clock() >= outage.until_s

    def on_request(self, host: HostInfo) -> None:
        """A worker is asked: if it could not be reached before, others wait for the outcome of this one read."""
        outage = self._outages.get(host)
        if outage is not None and self._is_live(host):
            self._outages[host] = _Outage(self._clock() + outage.lasts_s, outage.lasts_s, is_probed=True)

    def on_unreachable(self, host: HostInfo) -> None:
        """A worker did not answer: it is asked last for a while, and the map may be out of date."""
        before = self._outages.get(host)
        if before is None or before.is_probed:
            lasts_s = _LEAST_OUTAGE_S if before is None else min(2 * before.lasts_s, _MOST_OUTAGE_S)
            self._outages[host] = _Outage(self._clock() + lasts_s, lasts_s)
        self.on_outdated()

    def on_answer(self, host: HostInfo, spec: StoreSpec, answers: Iterable[Mapping[str, Any]]) -> None:
        """A worker answered: its answers and refusals tell the role and the lag of its replicas."""
        self._outages.pop(host, None)
        for partition, answer in {answer.get("partition"): answer for answer in answers}.items():
            role, lag = answer.get("role"), answer.get("lag")
            if partition is None or role is None or not isinstance(lag, Mapping):
                continue
            figures = Lag(*(lag.get(figure) for figure in Lag._fields))
            self._reports[spec.name, partition, host] = _Report(role, figures, self._clock())
            if role == "standby" and self._holders(spec, partition)[0] == host:
                self.on_outdated(_ROLE_CHECK_INTERVAL_S)

    def _holders(self, spec: StoreSpec, partition: int) -> tuple[HostInfo | None, tuple[HostInfo, ...]]:
        """The active and the standbys of a partition, by the map."""
        return self.map.by_topic_partition.get(TopicPartition(spec.topic, partition), (None, ()))
