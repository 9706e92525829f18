"""Which worker a fast read asks: the best candidate of its partition, re-evaluated every few milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from forebay.bounded_cache import of_one_store
from forebay.codecs.keys import from_segment
from forebay.lag import Tolerance
from forebay.routing.candidates import equally_good, less_loaded
from forebay.routing.hedging import MAX_DELAY_MS
from forebay.store_kinds import STORE_KINDS
from forebay.store_spec import StoreSpec
from forebay.wire.parameters import KEY_PARAMETERS, ReadParameters, parse_parameters
from forebay_router.cluster.worker_view import WorkerView
from forebay_router.reads.replica_request import DOUBTED, NamedKey
from forebay_router.router import Router
from forebay_router.upstream.pool import WorkerConnections
from forebay_web.fast_path.recogniser import RequestTemplate

_CHOICE_MAX_AGE_MS = 25.0
_PREPARED_KINDS = frozenset(
    kind.name for kind in STORE_KINDS.values() if kind.has_single_values and not kind.keeps_versions
)
_MAX_READS = 4096
_MAX_CHOICES = 32_768
"""Entries of some hundred bytes each."""


@dataclass(slots=True, eq=False)
class ReadTarget:
    """A worker that may be asked for a partition: ``rest`` is a request to it from ``partition=`` on."""

    worker: WorkerView
    upstream: WorkerConnections
    rest: bytes
    reported: bool = False
    """An answer has updated the information on its replica since this choice."""


class _Choice(NamedTuple):
    """The workers to choose among for a partition, and when they were determined."""

    made_boot_ms: float
    targets: tuple[ReadTarget, ...]


class PlacedKey(NamedTuple):
    """A key's partition, and how answers name it."""

    partition: int
    named: NamedKey


_ByPartition = dict[int, _Choice]


@dataclass(slots=True, eq=False)
class RoutedKeyRead:
    """A read of one key without the key: its store and query, prepared once for all identical reads."""

    spec: StoreSpec
    key_of: Callable[[bytes], PlacedKey]
    """A key by its URL segment as received; raises ``BadKey``."""
    query: bytes
    parameters: ReadParameters
    tolerance: Tolerance
    bounds: tuple[str, Tolerance]
    """The store, and the tolerance within the bounds that workers set to every read."""
    spread: bool
    choices: _ByPartition
    """Shared by all reads with the same candidates."""
    before: bytes
    """A request to a worker up to the key."""
    between: bytes
    """The rest, from there up to ``partition=``."""


class CandidateCache:
    """Recently prepared reads and candidate choices, shared by identical reads; both bounded."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._stores: Mapping[str, StoreSpec] = {}
        """Those that reads are prepared for."""
        self._keys: dict[tuple[str, str], Callable[[bytes], PlacedKey]] = {}
        """By store and how numbers are written: a key by its segment."""
        self._reads: dict[tuple[str, bytes], RoutedKeyRead] = {}
        """By store and query."""
        self._candidates: dict[tuple[str, Tolerance, bool, bool], _ByPartition] = {}
        self._choices_made = 0

    def key_read(self, template: RequestTemplate) -> RoutedKeyRead | None:
        """The prepared read of a form, None if the route must answer; raises ``Problem``."""
        stores = self._router.cluster.metadata.stores
        if stores is not self._stores:
            self._stores = stores
            self._keys.clear()
            self._forget()
        # Without the token, of which there may be any number.
        place = template[:2]
        found = self._reads.get(place)
        if found is not None:
            return found
        spec = stores.get(template.store)
        if spec is None or spec.kind not in _PREPARED_KINDS or spec.stream_partitioner is None:
            return None
        parameters = parse_parameters(template.query, KEY_PARAMETERS)
        if parameters.wait_ms or self._router.timeout_ms(parameters) < MAX_DELAY_MS:
            # A slow one is noticed only after the hedge delay.
            return None
        if len(self._reads) >= _MAX_READS:
            self._forget()
        tolerance = parameters.tolerance_for(spec)
        spread = parameters.prefer == "any" and not parameters.require_active
        read = RoutedKeyRead(
            spec,
            self._key_of(parameters.written(spec), parameters.numbers),
            template.query,
            parameters,
            tolerance,
            (spec.name, tolerance.held_to(self._router.cluster.ceiling)),
            spread,
            self._candidates.setdefault((spec.name, tolerance, spread, parameters.require_active), {}),
            b"GET /v1/stores/%b/keys/" % spec.name_bytes,
            b"?%b&" % template.query if template.query else b"?",
        )
        self._reads[place] = read
        return read

    def _key_of(self, spec: StoreSpec, numbers: str) -> Callable[[bytes], PlacedKey]:
        def work_out(segment: bytes) -> PlacedKey:
            plain = from_segment(spec.key_codec, segment)
            return PlacedKey(spec.partition_of(plain), NamedKey.of(spec, plain))

        place = spec.name, numbers
        if place not in self._keys:
            self._keys[place] = of_one_store(work_out, len(self._stores))
        return self._keys[place]

    def _forget(self) -> None:
        """Start again: clients may send any number of different forms."""
        self._reads.clear()
        self._candidates.clear()
        self._choices_made = 0

    def choose(self, read: RoutedKeyRead, partition: int, now_boot_ms: float) -> ReadTarget | None:
        """The best candidate, or one equally good; None if the ordinary read must search for one."""
        choice = read.choices.get(partition)
        if choice is None or now_boot_ms - choice.made_boot_ms >= _CHOICE_MAX_AGE_MS:
            choice = self._select_candidates(read, partition, now_boot_ms)
        for target in choice.targets:
            if not target.worker.recovered:
                # One was lost. Recovering ones are probed by ordinary reads.
                choice = self._select_candidates(read, partition, now_boot_ms)
                break
        targets = choice.targets
        if len(targets) < 2:
            return targets[0] if targets else None
        return less_loaded(targets, _load_of, self._router.choose)

    def _select_candidates(self, read: RoutedKeyRead, partition: int, now_boot_ms: float) -> _Choice:
        """Find the workers to choose among; none if one of them is recovering."""
        router = self._router
        # Workers may have other bounds by now.
        read.bounds = (read.spec.name, read.tolerance.held_to(router.cluster.ceiling))
        if read.spread:
            holders = router.cluster.holders(read.spec, partition, router.pool.load)
            hosts = list(equally_good(holders, read.tolerance))
        else:
            hosts = router.candidates(read.spec, partition, read.parameters)[:1]
        workers = [router.cluster.workers.get(host) for host in hosts]
        targets = tuple(
            self._target(worker, read.spec, partition)
            for worker in workers
            if worker is not None and worker.recovered
        )
        if len(targets) < len(hosts):
            targets = ()
        if partition not in read.choices:
            if self._choices_made >= _MAX_CHOICES:
                self._forget()
            self._choices_made += 1
        choice = read.choices[partition] = _Choice(now_boot_ms, targets)
        return choice

    def _target(self, worker: WorkerView, spec: StoreSpec, partition: int) -> ReadTarget:
        own = b"partition=%d" % partition
        if spec.name in self._router.cluster.doubted:
            own += b"&" + DOUBTED
        host, credentials = str(worker.host).encode(), self._router.credentials()
        rest = b"%b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (own, host, credentials)
        return ReadTarget(worker, self._router.pool[worker.host], rest)


def _load_of(target: ReadTarget) -> int:
    return target.upstream.load
