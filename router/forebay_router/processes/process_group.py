"""Reports on a router as a whole, whichever of its processes is asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
from prometheus_client.registry import Collector

from forebay.errors import NotReady, Problem
from forebay.wire.answer_schemas.status import RouterProcess, RouterStatus
from forebay_router.metrics import RouterMetrics
from forebay_router.router import Router
from forebay_web.health.store_counts import StoreSample, merged
from forebay_web.processes.group_metrics import GroupMetrics
from forebay_web.processes.peer_processes import PeerProcesses, ProcessSlot

_CATCH_UP_S = 5.0
_SILENT = RouterProcess(None, "silent", None)


class ProcessGroupView:
    """Readiness, status, metrics and history of all processes together."""

    def __init__(
        self,
        router: Router,
        metrics: RouterMetrics,
        samples: Callable[[str], list[StoreSample]],
        place: ProcessSlot,
    ) -> None:
        self._router = router
        self._samples = samples
        self._place = place
        self._metrics = GroupMetrics(place, metrics.steps, "router", "forebay_router_processes")
        self.peers = PeerProcesses(
            place,
            {
                "state": lambda _: msgspec.to_builtins(self._state()),
                "metrics": lambda _: self._metrics.document(),
                "history": self._samples_document,
            },
        )

    async def readiness(self) -> Problem | None:
        """Why the router is not ready; every process must be, since any may get the next connection."""
        problem = self._router.readiness()
        if problem is not None:
            return problem
        states = await self._states()
        missing = sum(process.state != "ready" for process in states)
        if missing == 0:
            return None
        return NotReady(f"Not ready: {missing} of the router's {len(states)} processes.", retry_after_s=1)

    async def catch_up(self) -> None:
        """Wait to be ready if another process is, for some seconds at most; called before this one listens.

        All share the address, so one that takes the place of another gets its connections from the beginning.
        """
        others = await self.peers.ask("state")
        if any(state is not None and state["state"] == "ready" for state in others.values()):
            await self._router.discovery.readied(_CATCH_UP_S)

    async def status(self) -> RouterStatus:
        """``GET /v1/status``: the answering process, and a summary of all."""
        return self._router.status(await self._states())

    async def metrics(self) -> Collector:
        """The metrics of all processes together."""
        return await self._metrics.together(await self.peers.ask("metrics"))

    async def samples(self, store: str) -> list[StoreSample]:
        """The last minutes of a store, by second; without the reads of a process that does not answer."""
        answers = await self.peers.ask("history", store)
        others = [
            map(StoreSample.from_document, document) for document in answers.values() if document is not None
        ]
        return merged([self._samples(store), *others])

    def _samples_document(self, store: str) -> list[Any]:
        return [sample.document() for sample in self._samples(store)]

    async def _states(self) -> list[RouterProcess]:
        states = {self._place.number: self._state()}
        for number, answer in (await self.peers.ask("state")).items():
            states[number] = _SILENT if answer is None else msgspec.convert(answer, RouterProcess)
        return [states[number] for number in sorted(states)]

    def _state(self) -> RouterProcess:
        return RouterProcess(
            process_id=str(os.getpid()),
            state=self._router.state,
            workers_live=sum(map(self._router.cluster.is_healthy, self._router.cluster.workers)),
        )
