"""The worker's hot path: a recognised read, answered by the same code as its route."""

from __future__ import annotations

from functools import lru_cache

from forebay.errors import Problem
from forebay.hot_path import HotPathProtocol, HotRequest, Slot
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.parameters import KEY_PARAMETERS, parse_parameters
from forebay.rest.routes import READ_ROUTES
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.queries.admission import Refused
from forebay_worker.queries.reads import KeyRead
from forebay_worker.worker import Worker

_KNOWN = KEY_PARAMETERS | {"partition"}
_MOST_REMEMBERED = 4096
_PATH = READ_ROUTES[0].path


class WorkerHotPath:
    """Answers single-key reads at once; those that wait for a bound are left to their route."""

    def __init__(self, worker: Worker, metrics: WorkerMetrics) -> None:
        self._worker = worker
        self._counts = metrics.reads

        @lru_cache(maxsize=_MOST_REMEMBERED)
        def read(store: str, query: bytes) -> KeyRead:
            return worker.reads.key(store, parse_parameters(query, _KNOWN))

        self._read = read

    def __call__(self, request: HotRequest, protocol: HotPathProtocol) -> Answer | Slot | None:
        """The answer, None where the route must give it."""
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
        return answer
