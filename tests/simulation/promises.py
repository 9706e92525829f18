"""What a simulated group promises; a run is judged after every step."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.streams_metadata import Generation
from forebay.task_ids import TaskId
from forebay_worker.group.election import holders
from forebay_worker.group.leader import GroupTimeouts
from forebay_worker.group.messages import AssignmentInfo
from tests.simulation.scheduler import Scheduler
from tests.simulation.worker import SimulatedWorker


class PromiseBroken(AssertionError):
    """A run broke a promise."""


class GroupJudge:
    """Sees all that workers do; ``check`` and ``on_assignment`` raise ``PromiseBroken``."""

    def __init__(self, scheduler: Scheduler, times: GroupTimeouts) -> None:
        self._scheduler = scheduler
        self._times = times
        self._given_out: dict[Generation, AssignmentInfo] = {}
        self._followed_ms: dict[Generation, float] = {}
        """When a generation was first followed."""
        self._leased_until: dict[str, float] = {}
        """By worker, the end of the last lease that it had."""
        self._longest_absence_ms: dict[str, float] = {}
        """By worker, since the newest generation was followed."""
        self.failovers = 0
        self.generations = self._given_out

    def on_assignment(self, worker: SimulatedWorker, info: AssignmentInfo) -> None:
        """A worker is about to follow an assignment."""
        if info.generation <= worker.generation:
            raise PromiseBroken(f"{worker.name} goes back from {worker.generation} to {info.generation}")
        known = self._given_out.get(info.generation)
        if known is None:
            self._on_new(info)
        elif known != info:
            raise PromiseBroken(f"generation {info.generation} is two assignments")

    def on_leave(self, worker: SimulatedWorker) -> None:
        """A worker has left in good order, so its lease ends."""
        self._leased_until[worker.name] = min(self._scheduler.now, self._leased_until.get(worker.name, 0.0))

    def check(self, workers: Iterable[SimulatedWorker]) -> None:
        """Check leases and actives as they are now."""
        active: dict[tuple[TaskId, Generation], str] = {}
        for worker in workers:
            if worker.gone:
                continue
            lease, now = worker.membership.lease_until_boot_ms, self._scheduler.now
            if lease > now + self._times.session_timeout_ms:
                raise PromiseBroken(f"the lease of {worker.name} is longer than a session")
            if lease > now:
                self._on_lease(worker.name, lease)
            if worker.active:
                self._require_current(worker)
            for task in worker.active:
                other = active.setdefault((task, worker.generation), worker.name)
                if other != worker.name:
                    raise PromiseBroken(f"{other} and {worker.name} are active for {task} in {worker.generation}")

    def _on_lease(self, name: str, until: float) -> None:
        before = self._leased_until.get(name, 0.0)
        absence_ms = self._scheduler.now - before
        self._longest_absence_ms[name] = max(absence_ms, self._longest_absence_ms.get(name, 0.0))
        self._leased_until[name] = max(until, before)

    def _on_new(self, info: AssignmentInfo) -> None:
        newest = max(self._given_out, default=None)
        if newest is not None and newest < info.generation:
            self._require_places_kept(self._given_out[newest], info)
            before, after = self._given_out[newest].assignment.current, info.assignment.current
            self.failovers += any(before[task].active != after[task].active for task in before)
        self._longest_absence_ms.clear()
        self._given_out[info.generation] = info
        self._followed_ms[info.generation] = self._scheduler.now

    def _require_current(self, worker: SimulatedWorker) -> None:
        """Whoever is active follows every generation that is older than a session."""
        latest = self._scheduler.now - self._times.session_timeout_ms
        for generation, followed_ms in self._followed_ms.items():
            if generation > worker.generation and followed_ms < latest:
                raise PromiseBroken(
                    f"{worker.name} is active by {worker.generation}, {generation} is followed since {followed_ms}"
                )

    def _require_places_kept(self, before: AssignmentInfo, after: AssignmentInfo) -> None:
        """A member has a place until it has been away for as long as it may, unless the group was lost."""
        if before.generation.incarnation != after.generation.incarnation:
            return
        for name in holders(before.assignment) - holders(after.assignment):
            away_ms = self._scheduler.now - self._leased_until.get(name, 0.0)
            away_ms = max(away_ms, self._longest_absence_ms.get(name, 0.0))
            if away_ms < self._times.standby_rebuild_delay_ms:
                raise PromiseBroken(f"{name} lost its place {away_ms:.0f} ms after its lease")
