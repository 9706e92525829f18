"""Changes of one key through the router: one stream to the client, whichever workers feed it."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import urlencode

from forebay.clock import boot_ms
from forebay.codecs.keys import from_segment, to_segment
from forebay.errors import PositionOfAnotherLog, Problem, UnknownPartitioner
from forebay.position import decode_position, encode_position
from forebay.streams_metadata import HostInfo
from forebay.timeouts import running_timeout
from forebay.wire.answers import AT_FAULT, HttpAnswer, problem_of
from forebay.wire.key_changes import KEEP_ALIVE_MS, is_transient, require_followed
from forebay.wire.parameters import ReadParameters
from forebay.wire.server_sent_events import Event
from forebay_router.cluster.cluster import Cluster
from forebay_router.reads.refusals import Attempt, document_of, refusal
from forebay_router.reads.replica_request import ReplicaRequest
from forebay_router.router import Router
from forebay_router.upstream.connection import EventUpstream
from forebay_router.upstream.opener import REFUSALS
from forebay_router.upstream.pool import WorkerConnections
from forebay_web.event_streams import Events, problem_event

_MIN_PAUSE_MS = 20.0
_MAX_PAUSE_MS = 1_000.0
_STEADY_MS = 1_000.0
"""A worker that served for this long counts as found: the next search starts with the shortest pause again."""
_MIN_ATTEMPT_MS, _MAX_ATTEMPT_MS = 50.0, 5_000.0
_MIN_TURN_MS = 500.0
_HEALTH_CHECK_INTERVAL_MS = 1_000.0
_SILENCE_MS = 2_000.0
"""How much longer than its comment interval a worker may be silent on a stream."""
_HANGING_MS = 1_000.0
"""How long a worker may seem down or hung, and be silent, before its streams move elsewhere; spread over up to
twice that, since all of them move."""


class RoutedChanges:
    """One client's stream of a key's changes, from replica to replica as they come and go.

    While no replica can serve, all are retried repeatedly, and a problem reports that every ``timeout_ms``.
    ``resuming`` means that ``min_position`` was sent automatically when the client reconnected.
    """

    def __init__(
        self, router: Router, store: str, segment: bytes, parameters: ReadParameters, resuming: bool
    ) -> None:
        self._router = router
        self._store = store
        self._segment = segment
        self._parameters = parameters
        self._resuming = resuming
        self._attempts: list[Attempt] = []
        self._due_boot_ms = router.deadline(parameters)
        self._pause_ms = _MIN_PAUSE_MS
        self._last_event_boot_ms = boot_ms()
        """When the client was last sent something while no replica could serve."""

    async def events(self) -> Events:
        """The events, without end; raises ``Problem`` if the request is at fault."""
        while True:
            try:
                async with aclosing(self._serve()) as events:
                    async for event in events:
                        yield event
            except PositionOfAnotherLog as problem:
                if not self._resuming:
                    raise
                # The log was replaced under the client: it is informed, forgets its position, and follows the new
                # log.
                self._parameters = replace(self._parameters, min_position=None)
                yield problem_event(problem, event_id="")
            except Problem as problem:
                if not is_transient(problem):
                    raise
                if boot_ms() >= self._due_boot_ms:
                    self._due_boot_ms = self._router.deadline(self._parameters)
                    self._last_event_boot_ms = boot_ms()
                    yield problem_event(problem)
                elif boot_ms() - self._last_event_boot_ms >= KEEP_ALIVE_MS:
                    self._last_event_boot_ms = boot_ms()
                    yield None
            await asyncio.sleep(self._pause_ms * random.uniform(0.5, 1.0) / 1000)
            self._pause_ms = min(2 * self._pause_ms, _MAX_PAUSE_MS)

    async def _serve(self) -> Events:
        """The events of the best replica that has any, until it is lost; raises ``Problem`` if none has."""
        host, upstream, event = await self._connect()
        since = boot_ms()
        watch = _SilenceWatch(self._router.cluster, host, upstream)
        try:
            while event is None or event.name != "problem":
                self._note(event)
                yield event
                event = await watch.next()
            self._refused(host, event)
        except OSError as error:
            self._lost(host, error)
        finally:
            watch.end()
            upstream.close()
        self._last_event_boot_ms = boot_ms()
        self._due_boot_ms = self._router.deadline(self._parameters)
        if boot_ms() - since >= _STEADY_MS:
            self._pause_ms = _MIN_PAUSE_MS

    async def _connect(self) -> tuple[HostInfo, EventUpstream, Event | None]:
        """The first candidate that has an event, and that event; raises ``Problem``."""
        spec = self._router.spec(self._store)
        require_followed(spec)
        plain = from_segment(spec.key_codec, self._segment)
        if spec.stream_partitioner is None:
            raise UnknownPartitioner(
                f"The partitioner of the store {spec.name!r} is 'unknown', and a key that is in no partition yet "
                "may appear in any: poll it instead.",
                store=spec.name,
            )
        partition = spec.partition_of(plain)
        hosts = self._router.candidates(spec, partition, self._parameters)
        path = f"/v1/stores/{spec.name}/keys/{to_segment(spec.key_codec, plain)}/changes"
        request = ReplicaRequest(spec, partition, f"{path}?{_query(self._parameters)}".encode())
        self._attempts = []
        for i, host in enumerate(hosts):
            # Each candidate gets a share of the time for the first event.
            share_ms = (self._due_boot_ms - boot_ms()) / (len(hosts) - i)
            if not self._parameters.wait_ms:
                share_ms = min(share_ms, _MAX_ATTEMPT_MS)
            try:
                upstream, event = await self._first(host, request, max(_MIN_ATTEMPT_MS, share_ms))
            except OSError as error:
                self._lost(host, error)
                continue
            self._router.cluster.on_answer(host)
            if event.name != "problem":
                return host, upstream, event
            upstream.close()
            self._refused(host, event)
        answer = refusal(spec.name, partition, self._attempts)
        raise problem_of(document_of(answer.body))

    async def _first(
        self, host: HostInfo, request: ReplicaRequest, share_ms: float
    ) -> tuple[EventUpstream, Event]:
        """A worker's stream and its first event, once it is this stream's turn; raises ``OSError``."""
        worker = self._router.pool[host]
        doubted = request.spec.name in self._router.cluster.doubted
        rendered = request.render(host, int(share_ms), self._router.credentials(), doubted=doubted)
        if self._parameters.wait_ms:
            # It may have to wait for long, and must not keep others from their turn.
            return await _first(worker, rendered, share_ms)
        turn, begun = worker.opening, boot_ms()
        async with running_timeout(share_ms / 1000):
            await turn.acquire()
        try:
            # A turn that came late is not given up.
            return await _first(worker, rendered, max(_MIN_TURN_MS, share_ms - (boot_ms() - begun)))
        finally:
            turn.release()

    def _note(self, event: Event | None) -> None:
        if event is not None and event.id:
            self._parameters = replace(self._parameters, min_position=decode_position(event.id))
            self._resuming = True

    def _refused(self, host: HostInfo, event: Event) -> None:
        """Record a worker's problem; raises it if the client is at fault."""
        document = document_of(event.data)
        status = document.get("status", 500)
        if status in AT_FAULT:
            raise problem_of(document)
        if status in REFUSALS:
            self._router.cluster.on_auth_rejected(host, status)
        if status == 421:
            self._router.discovery.refresh(host)
        self._attempts.append(Attempt(host, "answered", HttpAnswer(status, b"", event.data)))

    def _lost(self, host: HostInfo, error: OSError) -> None:
        self._router.counts["failovers"] += 1
        if isinstance(error, TimeoutError):
            # Only reads and polls show whether it hangs: streams opened by the thousand make a worker slow.
            self._attempts.append(Attempt(host, "timeout"))
        else:
            self._router.cluster.on_unreachable(host)
            self._attempts.append(Attempt(host, type(error).__name__))


class _SilenceWatch:
    """Closes a worker's stream that is silent for too long, or while the worker hangs."""

    def __init__(self, cluster: Cluster, host: HostInfo, upstream: EventUpstream) -> None:
        self._cluster = cluster
        self._host = host
        self._upstream = upstream
        self._hanging_ms = random.uniform(1, 2) * _HANGING_MS
        self._waits_since_boot_ms: float | None = None
        """None while the client has not taken what came last."""
        self._ill_since_boot_ms: float | None = None
        """Since when every check has found the worker ill."""
        self._is_silent = self._has_ended = False
        self._check_later()

    async def next(self) -> Event | None:
        """The worker's next event; raises ``OSError`` if the worker is lost, or silent for too long."""
        self._waits_since_boot_ms = boot_ms()
        try:
            return await self._upstream.next()
        except OSError:
            if self._is_silent:
                raise TimeoutError from None
            raise
        finally:
            self._waits_since_boot_ms = None

    def end(self) -> None:
        """Watch no more."""
        self._has_ended = True
        self._timer.cancel()

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_HEALTH_CHECK_INTERVAL_MS / 1000, self._check)

    def _check(self) -> None:
        if self._has_ended:
            return
        now, since = boot_ms(), self._waits_since_boot_ms
        if since is None or self._cluster.is_healthy(self._host):
            self._ill_since_boot_ms = None
        elif self._ill_since_boot_ms is None:
            self._ill_since_boot_ms = now
        hangs = self._ill_since_boot_ms is not None and now - self._ill_since_boot_ms >= self._hanging_ms
        if hangs or (since is not None and now - since > KEEP_ALIVE_MS + _SILENCE_MS):
            self._is_silent = True
            self._upstream.close()
            return
        self._check_later()


async def _first(worker: WorkerConnections, request: bytes, left_ms: float) -> tuple[EventUpstream, Event]:
    """A worker's stream and its first event; raises ``OSError``."""
    async with running_timeout(left_ms / 1000):
        upstream = await worker.open_events(request)
        try:
            while (event := await upstream.next()) is None:
                pass
        except BaseException:
            upstream.close()
            raise
        return upstream, event


def _query(parameters: ReadParameters) -> str:
    parameters_given = {
        **parameters.tolerance._asdict(),
        "require_active": "true" if parameters.require_active else None,
        "min_position": None if parameters.min_position is None else encode_position(parameters.min_position),
        "wait_ms": parameters.wait_ms or None,
        "lag_interval_ms": parameters.lag_interval_ms,
        "numbers": parameters.numbers if parameters.numbers != "json" else None,
        "headers": "true" if parameters.headers else None,
    }
    return urlencode({name: value for name, value in parameters_given.items() if value is not None})
