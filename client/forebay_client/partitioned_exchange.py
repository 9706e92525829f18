"""The exchange of a partition-aware client: each request goes to a worker that holds its partition."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay.errors import ForebayError, UnknownPartitioner
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo
from forebay_client.description_plans import Descriptions
from forebay_client.exchange import (
    Exchange,
    Opened,
    Pause,
    Plan,
    RefusalIn,
    Request,
    Server,
    no_refusal,
    server_urls,
)
from forebay_client.known_workers import KnownWorkers
from forebay_client.proxies import Proxy
from forebay_client.target_partition import TargetPartition
from forebay_client.worker_read import WorkerRead

_REFRESH_MS = 500.0
"""The longest that a read waits for a newer map, if there is one that it can use."""


class PartitionedExchange:
    """Learns the map of the workers from any of them, and asks the candidates of each request's partition.

    A request without a target is sent to any server. ``at_once`` is how many requests of a read go out at once.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
        at_once: int = 1,
        decimals: bool = False,
    ) -> None:
        self.at_once = at_once
        self.decimals = decimals
        """As of an ``Exchange``."""
        self._timeout_ms = timeout_ms
        self._clock = clock
        self.workers = KnownWorkers(server_urls(urls), clock)
        self._seeds = Exchange(urls, timeout_ms, clock, decimals=decimals)

    @property
    def _any(self) -> Exchange:
        """Asks the first of some servers that answers."""
        if not self.workers.has_map:
            return self._seeds
        return Exchange(self.workers.servers(), self._timeout_ms, self._clock, decimals=self.decimals)

    def deadline(self, timeout_ms: int | None = None, wait_ms: int = 0) -> float:
        """The deadline of a call that begins now, in milliseconds of the clock: waits are beside the default."""
        return self._seeds.deadline(timeout_ms, wait_ms)

    @property
    def now_ms(self) -> float:
        """The time, in milliseconds of the clock of deadlines."""
        return self._clock() * 1000

    def target(self, spec: StoreSpec, plain: bytes) -> TargetPartition:
        """The partition of a key; raises ``PartitionerMissing``, or ``UnknownPartitioner``."""
        if spec.stream_partitioner is None:
            raise UnknownPartitioner(
                f"The partitioner of the store {spec.name!r} is 'unknown', so a partition-aware client cannot "
                "tell which worker has a key. Ask a router, which searches all.",
                store=spec.name,
            )
        return TargetPartition(self.workers, spec, spec.partition_of(plain))

    def refresh(self, deadline_ms: float) -> Plan[None]:
        """Read the map anew if that is due; raises ``Problem`` if none is known at all."""
        workers = self.workers
        if not workers.is_due:
            return
        had_map, now_ms = workers.has_map, self._clock() * 1000
        until_ms = min(deadline_ms, now_ms + _REFRESH_MS) if had_map else deadline_ms
        workers.on_refresh()
        try:
            map_ = yield from Descriptions(self._any).map(until_ms)
            local = yield from self._local_workers(until_ms)
        except ForebayError:
            if not had_map:
                raise
        else:
            workers.adopt(map_, local)

    def _local_workers(self, deadline_ms: float) -> Plan[dict[str, str]]:
        """The URL of each Unix socket by the process id of the worker that listens there."""
        local: dict[str, str] = {}
        for url in self.workers.sockets:
            try:
                of_socket = Descriptions(Exchange(url, self._timeout_ms, self._clock))
                local[(yield from of_socket.identity(deadline_ms)).process_id] = url
            except ForebayError:
                continue
        return local

    def ask(
        self,
        request: Request,
        deadline_ms: float,
        refusal_in: RefusalIn = no_refusal,
    ) -> Plan[dict[str, Any]]:
        """The document that answers a request; raises ``Problem``.

        On 412, 421, 429, 502, 503, 504 and lost connections the next candidate is asked. Once all were, they are
        asked again with a newer map, or after ``Retry-After``, if time permits and that may help.
        """
        target = request.target
        if target is None:
            return (yield from self._any.ask(request, deadline_ms, refusal_in))
        document, _ = yield from self.ask_timed(request, target, deadline_ms, refusal_in)
        return document

    def ask_timed(
        self, request: Request, target: TargetPartition, deadline_ms: float, refusal_in: RefusalIn = no_refusal
    ) -> Plan[tuple[dict[str, Any], float]]:
        """The same, and as of when the lag in it is right, on the boot-time clock."""
        while True:
            yield from self.refresh(deadline_ms)
            read = self._read(request, target, deadline_ms, refusal_in)
            found = yield from read.run()
            if found is not None:
                document, _ = found
                assert isinstance(document, dict)
                return document, read.as_of_boot_ms
            yield from self._pause(read, deadline_ms)

    def _read(
        self, request: Request, target: TargetPartition, deadline_ms: float, refusal_in: RefusalIn
    ) -> WorkerRead:
        return WorkerRead(request, target, deadline_ms, refusal_in, self.refresh, self._clock, self.decimals)

    def _pause(self, read: WorkerRead, deadline_ms: float) -> Plan[None]:
        """Wait until asking again may help; raises ``Problem`` if it does not in time."""
        pause_s = read.pause_s()
        if pause_s is None or (self._clock() + pause_s) * 1000 >= deadline_ms:
            raise read.refusal()
        yield Pause(pause_s)
        self.workers.on_outdated()

    def open(self, request: Request, deadline_ms: float) -> Plan[tuple[Opened, Server]]:
        """The stream of the first candidate that provides one, and that worker; raises ``Problem``.

        Raises ``TypeError`` for the changes of many keys, which several workers hold.
        """
        if request.target is None:
            raise TypeError(
                "A partition-aware client follows single keys. To follow many, make a client of routers."
            )
        yield from self.refresh(deadline_ms)
        read = self._read(request, request.target, deadline_ms, no_refusal)
        found = yield from read.run()
        if found is None:
            raise read.refusal()
        stream, host = found
        assert isinstance(stream, Opened)
        return stream, host

    @property
    def several(self) -> bool:
        """Whether there is another server to turn to."""
        return len(self.workers.map.hosts) > 1

    def turn_from(self, server: Server) -> None:
        """Ask another worker first for a while."""
        if isinstance(server, HostInfo):
            self.workers.on_unreachable(server)


def exchange_of(
    urls: str | Sequence[str], timeout_ms: int, proxies: Mapping[str, Proxy], at_once: int | None, decimals: bool
) -> Exchange | PartitionedExchange:
    """The exchange of a client, which is partition-aware with ``at_once``."""
    if at_once is None:
        return Exchange(urls, timeout_ms, proxies=proxies, decimals=decimals)
    return PartitionedExchange(urls, timeout_ms, at_once=at_once, decimals=decimals)
