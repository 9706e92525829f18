"""Reports on a worker as a whole, whichever of its processes is asked."""

from __future__ import annotations

from prometheus_client.registry import Collector

from forebay.errors import NotReady, Problem
from forebay_web.processes.group_metrics import GroupMetrics
from forebay_web.processes.peer_processes import PeerProcesses, ProcessSlot
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.worker import Worker


class WorkerProcesses:
    """Readiness and metrics of all processes together; what they hold, each reports for itself."""

    def __init__(self, worker: Worker, metrics: WorkerMetrics, place: ProcessSlot) -> None:
        self._worker = worker
        self._place = place
        self._metrics = GroupMetrics(place, metrics.steps, "worker", "forebay_processes")
        self.peers = PeerProcesses(
            place,
            {
                "ready": lambda _: self._worker.readiness() is None,
                "metrics": lambda _: self._metrics.document(),
            },
        )

    async def readiness(self) -> Problem | None:
        """Why the worker is not ready: supervisors see one process, so every one must be."""
        problem = self._worker.readiness()
        if problem is not None:
            return problem
        answers = await self.peers.ask("ready")
        missing = sum(answer is not True for answer in answers.values())
        if missing == 0:
            return None
        processes = self._place.processes
        return NotReady(f"Not ready: {missing} of the worker's {processes} processes.", retry_after_s=1)

    async def metrics(self) -> Collector:
        """The metrics of all processes together."""
        return await self._metrics.together(await self.peers.ask("metrics"))
