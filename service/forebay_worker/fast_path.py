"""The worker's fast path: recognised reads, answered by the same code as their routes."""

from __future__ import annotations

import logging
from functools import lru_cache, partial
from time import perf_counter

from forebay.errors import InternalError, Overloaded, Problem
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay.wire.batches import batch_answer, is_large, read_batch_keys
from forebay.wire.parameters import KEY_PARAMETERS, WORKER_PARAMETERS, ReadParameters, parse_parameters
from forebay_web.fast_path.pending import OPEN, PendingResponse
from forebay_web.fast_path.protocol import FastPathProtocol, KeyHandler, left_to_slow_path
from forebay_web.fast_path.recogniser import RecognisedBatch, RequestTemplate
from forebay_web.large_answers import MAX_AT_ONCE_BYTES
from forebay_web.routes import BATCH_ROUTE, READ_ROUTES
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.reads.admission import Refused
from forebay_worker.reads.keys import Batched, KeyRead
from forebay_worker.state.rocksdb import NotInMemory
from forebay_worker.worker import Worker

log = logging.getLogger(__name__)

_KNOWN = KEY_PARAMETERS | WORKER_PARAMETERS
_MAX_REMEMBERED = 4096
_MIN_ROOM_BYTES = 64 << 10
"""There must be for a batch: how much its answer takes is known, and counted, only once it is sent."""
_MAX_AT_ONCE_S = 0.003
"""Why: a batch of keys without values takes some ten milliseconds, which are others' turns too."""
_PATH = READ_ROUTES[0].path


class WorkerFastPath:
    """Answers reads of one or several keys at once; those that wait for a bound are left to their route."""

    def __init__(self, worker: Worker, metrics: WorkerMetrics) -> None:
        self._worker = worker
        self._metrics = metrics

        @lru_cache(maxsize=_MAX_REMEMBERED)
        def parameters(query: bytes) -> ReadParameters:
            return parse_parameters(query, _KNOWN)

        self._parameters = parameters

    def key(self, template: RequestTemplate) -> KeyHandler:
        """Answers at once, or leaves it to the route."""
        try:
            prepared = self._worker.reads.key(template.store, self._parameters(template.query))
        except Problem as problem:
            return self._refusing(template.store, problem)
        if prepared.parameters.wait_ms:
            return left_to_slow_path
        return self._reading(template, prepared)

    def _reading(self, template: RequestTemplate, prepared: KeyRead) -> KeyHandler:
        counts, took_us = self._metrics.reads[_PATH], self._metrics.answer_us[_PATH, template.store].observe
        bounds = prepared.bounds
        reads_disk = self._worker.disk_reads.are_likely
        read, read_from_memory = prepared.answer, partial(prepared.answer, from_memory=True)

        def key(segment: bytes, protocol: FastPathProtocol) -> HttpAnswer | PendingResponse:
            begun_s = perf_counter()
            try:
                answer = read_from_memory(segment) if reads_disk() else read(segment)
            except NotInMemory as missing:
                return self._after_disk(missing, protocol, template, prepared, segment, begun_s)
            except Refused as refused:
                answer = refused.answer()
            except Problem as problem:
                answer = problem_answer(problem)
            counts[answer.status] += 1
            took_us((perf_counter() - begun_s) * 1e6)
            if not protocol.has_pending:
                return answer
            # It waits for an earlier one that reads from disk, and is within its bounds when it is sent.
            pending = protocol.pending(template)
            pending.fill(answer, bounds)
            return pending

        return key

    def _after_disk(
        self,
        missing: NotInMemory,
        protocol: FastPathProtocol,
        template: RequestTemplate,
        prepared: KeyRead,
        segment: bytes,
        begun_s: float,
    ) -> HttpAnswer | PendingResponse:
        """The place of an answer that is made once its block was read from disk."""
        try:
            held = self._worker.limits.requests.held_by(protocol.peer(template), 1)
        except Overloaded as problem:
            return self._counted(template.store, problem_answer(problem), begun_s)
        pending = protocol.pending(template)
        pending.on_abandoned = held.release

        def is_read() -> None:
            held.release()
            if pending.state is OPEN:
                pending.fill(self._answer(prepared, segment, begun_s), prepared.bounds)

        self._worker.disk_reads.begin(missing, is_read)
        return pending

    def _answer(self, prepared: KeyRead, segment: bytes, begun_s: float) -> HttpAnswer:
        try:
            answer = prepared.answer(segment)
        except Refused as refused:
            answer = refused.answer()
        except Problem as problem:
            answer = problem_answer(problem)
        except Exception:
            log.exception("a read from disk failed")
            # An empty place would hold back every later answer of the connection.
            answer = problem_answer(InternalError("The service failed; its log says why."))
        return self._counted(prepared.bounds[0], answer, begun_s)

    def _counted(self, store: str, answer: HttpAnswer, begun_s: float) -> HttpAnswer:
        self._metrics.count_answer(_PATH, store, answer.status, begun_s)
        return answer

    def _refusing(self, store: str, problem: Problem) -> KeyHandler:
        """For a form that is at fault whatever the key."""
        return lambda segment, protocol: self._counted(store, problem_answer(problem), perf_counter())

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> HttpAnswer | None:
        """The answer, None if the route must give it."""
        begun_s = perf_counter()
        try:
            parameters = self._parameters(request.template.query)
            if parameters.wait_ms or is_large(request.body):
                return None
            peer = protocol.peer(request.template)
            refusal = self._worker.limits.memory.refusal(peer, len(request.body) + _MIN_ROOM_BYTES)
            if refusal is not None:
                raise refusal
            keys = read_batch_keys(request.body)
            reads = self._worker.reads
            spec = reads.batch_spec(request.template.store, parameters)
            located = reads.locate(spec, keys.values, parameters)
            if not reads.are_in_memory(spec, located, parameters):
                return None
            batched = Batched.of(located)
            for taken_bytes in reads.batching(batched, spec, located, parameters):
                if taken_bytes > MAX_AT_ONCE_BYTES or perf_counter() - begun_s > _MAX_AT_ONCE_S:
                    # The route reads it in turns with other requests.
                    return None
            answer = batch_answer(keys, batched.results, frames=request.frames)
            self._worker.admission.served.count_worst(spec.name, batched.lags)
        except Problem as problem:
            answer = problem_answer(problem)
        self._metrics.count_answer(BATCH_ROUTE.path, request.template.store, answer.status, begun_s)
        return answer
