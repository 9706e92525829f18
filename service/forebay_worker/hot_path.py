"""The worker's hot path: a recognised read, answered by the same code as its route."""

from __future__ import annotations

from forebay.errors import Problem
from forebay.hot_path import HotPathProtocol, HotRequest, Slot
from forebay.rest.answers import Answer, problem_answer
from forebay.rest.parameters import KEY_PARAMETERS, parse_parameters
from forebay.rest.routes import READ_ROUTES
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.queries.admission import Refused
from forebay_worker.worker import Worker

_KNOWN = KEY_PARAMETERS | {"partition"}
_PATH = READ_ROUTES[0].path


class WorkerHotPath:
    """Answers single-key reads at once; those that wait for a bound are left to their route."""

    def __init__(self, worker: Worker, metrics: WorkerMetrics) -> None:
        self._worker = worker
        self._reads = worker.reads
        self._counts = metrics.reads

    def __call__(self, request: HotRequest, protocol: HotPathProtocol) -> Answer | Slot | None:
        """The answer, None where the route must give it."""
        if self._worker.draining:
            return None
        try:
            parameters = parse_parameters(request.query, _KNOWN)
            if parameters.wait_ms:
                return None
            answer = self._reads.key(request.store, request.segment, parameters)
        except Refused as refused:
            answer = refused.answer()
        except Problem as problem:
            answer = problem_answer(problem)
        self._counts[_PATH, answer.status] += 1
        return answer
