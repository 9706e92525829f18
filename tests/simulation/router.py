"""A router in virtual time: maps that it polls, the core's candidates and read policy, and a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from forebay.lag import UNLIMITED, Lag
from forebay.routing.candidates import Holder, candidates
from forebay.routing.failover_policy import (
    Action,
    Ask,
    AttemptOutcome,
    Finish,
    GiveUp,
    NoteSlow,
    ReadPolicy,
    Refresh,
    Wait,
)
from forebay.routing.hedging import HedgeBudget
from forebay.streams_metadata import NO_GENERATION, Generation, HostInfo
from forebay.task_ids import TaskId
from forebay_worker.group.messages import AssignmentInfo
from tests.simulation.promises import PromiseBroken
from tests.simulation.scheduler import Scheduler
from tests.simulation.worker import SimulatedWorker

DEADLINE_MS = 1_000.0
_POLL_INTERVAL_MS = 500.0
_HEDGE_DELAY_MS = 25.0
_SLOW_READS = 3
"""After so many that a worker lets wait it counts as hung, until it answers."""
_LAG = Lag(0, 0.0, 0.0)


class SimulatedRouter:
    """Reads tasks of the workers in ``processes``, by name."""

    def __init__(self, scheduler: Scheduler, random: Random, processes: dict[str, SimulatedWorker]) -> None:
        self._scheduler = scheduler
        self._random = random
        self.processes = processes
        self.info: AssignmentInfo | None = None
        self.slow: Counter[str] = Counter()
        self.down: set[str] = set()
        self.budget = HedgeBudget()
        self.finished = self.failovers = 0

    def poll(self) -> None:
        """Read the newest map, now and then."""
        self.refresh()
        self._scheduler.after(_POLL_INTERVAL_MS, self.poll)

    def refresh(self) -> None:
        """Read the newest map that a worker has."""
        for worker in self.processes.values():
            if not (worker.gone or worker.stopped):
                self.down.discard(worker.name)
                self.slow.pop(worker.name, None)
                if worker.info is not None and (self.info is None or worker.generation > self.info.generation):
                    self.info = worker.info

    def read(self, task: TaskId) -> None:
        """Read a key of a task, if its holders are known."""
        if self.info is not None:
            self.budget.earn(self._scheduler.now)
            _Read(self, self._scheduler, self._random, task).begin()


@dataclass(frozen=True)
class _Replicas:
    """What a router knows of a task's replicas."""

    router: SimulatedRouter
    task: TaskId

    @property
    def generation(self) -> Generation:
        return NO_GENERATION if self.router.info is None else self.router.info.generation

    def candidates(self) -> Sequence[HostInfo]:
        info = self.router.info
        assert info is not None
        placement = info.assignment.current[self.task]
        return candidates(
            [
                self._holder(name, "active" if name == placement.active else "standby")
                for name in placement.members
            ],
            UNLIMITED,
        )

    def _holder(self, name: str, role: str) -> Holder:
        live, hung = name not in self.router.down, self.router.slow[name] >= _SLOW_READS
        return Holder(HostInfo(name, 1), role, _LAG, live=live, suspect=hung)

    def is_full(self, host: HostInfo) -> bool:
        return False

    def is_healthy(self, host: HostInfo) -> bool:
        return host.host not in self.router.down and self.router.slow[host.host] < _SLOW_READS

    def hedge_delay_ms(self) -> float:
        return _HEDGE_DELAY_MS

    def spend_hedge(self) -> bool:
        return self.router.budget.spend()


@dataclass
class _Read:
    router: SimulatedRouter
    scheduler: Scheduler
    random: Random
    task: TaskId
    begun_ms: float = 0.0
    reachable: set[SimulatedWorker] = field(default_factory=set)
    """Workers that could answer when it began, and that the router knew."""
    requested: Counter[tuple[str, Generation]] = field(default_factory=Counter)
    step: int = 0
    ended: bool = False

    def begin(self) -> None:
        self.begun_ms = self.scheduler.now
        self.replicas = _Replicas(self.router, self.task)
        self.policy = ReadPolicy(self.replicas, self.begun_ms + DEADLINE_MS)
        known = {host.host for host in self.replicas.candidates()}
        self.reachable = {self.router.processes[name] for name in known if self._can_answer(name)}
        self._carry_out(self.policy.begin(self.begun_ms))

    def _can_answer(self, name: str) -> bool:
        worker = self.router.processes[name]
        return not (worker.gone or worker.stopped) and self.task in worker.offsets

    def _carry_out(self, actions: Sequence[Action[HostInfo]]) -> None:
        self.step += 1
        for action in actions:
            match action:
                case Ask(host):
                    self._ask(host.host)
                case NoteSlow(host):
                    self.router.slow[host.host] += 1
                case Wait(until_ms):
                    step = self.step
                    delay_ms = max(0.0, until_ms - self.scheduler.now)
                    self.scheduler.after(delay_ms, lambda step=step: self._tick(step))
                case Refresh():
                    self.scheduler.after(self.random.uniform(1, 5), self._refreshed)
                case Finish():
                    self.ended = True
                    self.router.finished += 1
                case GiveUp(reason):
                    self.ended = True
                    self._require_excuse(reason)

    def _tick(self, step: int) -> None:
        if not self.ended and step == self.step:
            self._carry_out(self.policy.tick(self.scheduler.now))

    def _refreshed(self) -> None:
        self.router.refresh()
        self._carry_out(self.policy.refreshed(self.scheduler.now))

    def _ask(self, name: str) -> None:
        requested = name, self.replicas.generation
        self.requested[requested] += 1
        if self.requested[requested] > 1:
            raise PromiseBroken(f"a read of {self.task} asks {name} twice")
        self.scheduler.after(self.random.uniform(0.5, 3), lambda: self._arrive(self.router.processes[name]))

    def _arrive(self, worker: SimulatedWorker) -> None:
        if worker.gone:
            self.router.down.add(worker.name)
            self.router.failovers += 1
            self._settle(worker.name, AttemptOutcome.FAILED)
        elif worker.stopped:
            worker.run(lambda: self._arrive(worker))
        else:
            served = self.task in worker.offsets
            outcome = AttemptOutcome.FINAL if served else AttemptOutcome.REFUSED
            self.scheduler.after(self.random.uniform(0.5, 3), lambda: self._settle(worker.name, outcome))

    def _settle(self, name: str, outcome: AttemptOutcome) -> None:
        if outcome is not AttemptOutcome.FAILED:
            self.router.down.discard(name)
            self.router.slow.pop(name, None)
        if not self.ended:
            self._carry_out(self.policy.settle([(HostInfo(name, 1), outcome)], self.scheduler.now))

    def _require_excuse(self, reason: str) -> None:
        able = {
            worker.name
            for worker in self.reachable
            if self.router.processes[worker.name] is worker
            and self._can_answer(worker.name)
            and worker.interrupted_ms < self.begun_ms
        }
        if able:
            raise PromiseBroken(f"a read of {self.task} ends {reason}, though {sorted(able)} could have answered")
