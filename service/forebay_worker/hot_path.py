"""The worker's hot path: recognised reads, answered by the same code as their routes."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

from forebay.errors import Problem
from forebay.hot_path import HotBatch, HotPathProtocol, HotRequest
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.batches import batch_answer, read_batch_keys
from forebay.rest.parameters import KEY_PARAMETERS, ReadParameters, parse_parameters
from forebay.rest.routes import BATCH_ROUTE, READ_ROUTES
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.queries.admission import Refused
from forebay_worker.queries.reads import KeyRead
from forebay_worker.worker import Worker

_KNOWN = KEY_PARAMETERS | {"partition"}
_MOST_REMEMBERED = 4096
_PATH = READ_ROUTES[0].path


class WorkerHotPath:
    """Answers reads of one or several keys at once; those that wait for a bound are left to their route."""

    def __init__(self, worker: Worker, metrics: WorkerMetrics) -> None:
        self._worker = worker
        self._counts = metrics.reads
        self._took_us = metrics.answer_us[_PATH].observe
        self._count_answer = metrics.count_answer

        @lru_cache(maxsize=_MOST_REMEMBERED)
        def parameters(query: bytes) -> ReadParameters:
            return parse_parameters(query, _KNOWN)

        @lru_cache(maxsize=_MOST_REMEMBERED)
        def read(store: str, query: bytes) -> KeyRead:
            return worker.reads.key(store, parameters(query))

        self._parameters = parameters
        self._read = read

    def key(self, request: HotRequest, protocol: HotPathProtocol) -> Answer | None:
        """The answer, None if the route must give it."""
        begun_s = perf_counter()
        try:
            read = self._read(request.form.store, request.form.query)
            if read.parameters.wait_ms:
                return None
            answer = read.answer(request.segment)
        except Refused as refused:
            answer = refused.answer()
        except Problem as problem:
            answer = problem_answer(problem)
        self._counts[_PATH, answer.status] += 1
        self._took_us((perf_counter() - begun_s) * 1e6)
        return answer

    def batch(self, request: HotBatch, protocol: HotPathProtocol) -> Answer | None:
        """The same for a batch."""
        begun_s = perf_counter()
        try:
            parameters = self._parameters(request.form.query)
            if parameters.wait_ms:
                return None
            keys = read_batch_keys(request.body)
            results = self._worker.reads.batch(request.form.store, keys, parameters).results
            answer = batch_answer(keys, results, frames=request.frames)
        except Problem as problem:
            answer = problem_answer(problem)
        self._count_answer(BATCH_ROUTE.path, answer.status, begun_s)
        return answer
