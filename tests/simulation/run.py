"""One schedule: a seed decides what happens to a group, and whether its promises hold does not depend on it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from forebay_worker.group.leader import GroupTimeouts
from tests.simulation.kafka_group import KafkaGroup
from tests.simulation.promises import GroupJudge, PromiseBroken
from tests.simulation.router import SimulatedRouter
from tests.simulation.scheduler import Scheduler
from tests.simulation.sqlite_group import SqliteGroup
from tests.simulation.worker import TOPOLOGY, Ends, SimulatedWorker

SESSION_MS, REBUILD_MS, INITIAL_MS, PROBING_MS = 6_000, 20_000, 3_000, 4_000
TIMES = GroupTimeouts(SESSION_MS, REBUILD_MS, INITIAL_MS, PROBING_MS)
_FAULTS_MS = 40_000.0
_CONVERGES_MS = REBUILD_MS + 8 * SESSION_MS
LOGS = ("sqlite", "kafka")


class SimulatedGroup(Protocol):
    """What carries the members' messages."""

    def join(self, worker: SimulatedWorker, ends: Ends) -> None:
        """Let a worker take part from now on; it gets a membership."""
        ...

    def leave(self, worker: SimulatedWorker) -> None:
        """Let it leave in good order."""
        ...

    def disturb(self, severity: float) -> None:
        """Lose so large a part of what is sent from now on."""
        ...

    def forget(self) -> None:
        """Lose what can be lost, as by the removal of a file."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def open_group(log: str, scheduler: Scheduler, random: Random) -> SimulatedGroup:
    """A group over either log."""
    return (SqliteGroup if log == "sqlite" else KafkaGroup)(scheduler, random, TIMES)


@dataclass(frozen=True)
class Outcome:
    """What a schedule was good for."""

    faults: Counter[str]
    generations: int
    failovers: int
    reads: int
    read_failovers: int


class Schedule:
    """Three to five workers, a router, and some faults at random times."""

    def __init__(self, log: str, seed: int) -> None:
        self._random = Random(f"{log} {seed}")
        self._scheduler = Scheduler()
        self._judge = GroupJudge(self._scheduler, TIMES)
        self._group = open_group(log, self._scheduler, self._random)
        self.workers: dict[str, SimulatedWorker] = {}
        self._lives: Counter[str] = Counter()
        self._router = SimulatedRouter(self._scheduler, self._random, self.workers)
        self._faults: Counter[str] = Counter()
        self._calm = False

    def run(self) -> Outcome:
        """Run it to the end; raises ``PromiseBroken``."""
        try:
            self._scheduler.on_step = lambda: self._judge.check(self.workers.values())
            for name in "abcde"[: self._random.randint(3, 5)]:
                self._later(1_000, lambda name=name: self._start(name))
            self._later(1_000, self._router.poll)
            for _ in range(self._random.randint(3, 8)):
                self._later(_FAULTS_MS, self._break_something)
            for _ in range(20):
                self._later(_FAULTS_MS, self._read)
            self._scheduler.run_for(_FAULTS_MS)
            self._heal()
            if not self._scheduler.run_until(self._is_served, _CONVERGES_MS):
                raise PromiseBroken(f"not served {_CONVERGES_MS} ms after the last fault: {self._roles()}")
        finally:
            self._group.close()
        return Outcome(
            self._faults,
            len(self._judge.generations),
            self._judge.failovers,
            self._router.finished,
            self._router.failovers,
        )

    def _later(self, within_ms: float, action: Callable[[], None]) -> None:
        self._scheduler.after(self._random.uniform(0, within_ms), action)

    def _start(self, name: str) -> None:
        before = self.workers.get(name)
        self._lives[name] += 1
        worker = SimulatedWorker(
            name,
            self._lives[name],
            self._scheduler,
            self._judge,
            catch_up_ms=lambda: self._random.uniform(10, SESSION_MS),
            offsets={} if before is None else dict(before.offsets),
        )
        self.workers[name] = worker
        self._group.join(worker, Ends(lambda: self._pause(worker)))

    def _pause(self, worker: SimulatedWorker) -> None:
        """Within a round of the leader, now and then, others go on without it."""
        if self._calm or self._random.random() > 0.05:
            return
        self._faults["paused leader"] += 1
        worker.stop()
        self._scheduler.run_for(self._random.uniform(0, 2 * SESSION_MS))
        worker.resume()

    def _break_something(self) -> None:
        running = [worker for worker in self.workers.values() if not (worker.gone or worker.stopped)]
        if not running or self._calm:
            return
        worker = self._random.choice(running)
        fault = self._random.choice(
            [self._crash, self._stop, self._leave, self._refuse, self._disturb, self._forget]
        )
        self._faults[fault.__name__.removeprefix("_")] += 1
        fault(worker)

    def _crash(self, worker: SimulatedWorker) -> None:
        worker.gone = True
        self._return_later(worker)

    def _leave(self, worker: SimulatedWorker) -> None:
        self._group.leave(worker)
        self._judge.on_leave(worker)
        self._return_later(worker)

    def _return_later(self, worker: SimulatedWorker) -> None:
        def back() -> None:
            if self.workers[worker.name] is worker:
                self._start(worker.name)

        if self._random.random() < 0.8:
            self._later(self._random.choice([SESSION_MS, 2 * REBUILD_MS]), back)

    def _stop(self, worker: SimulatedWorker) -> None:
        worker.stop()
        self._later(3 * SESSION_MS, worker.resume)

    def _refuse(self, worker: SimulatedWorker) -> None:
        worker.refuses = True

        def recover() -> None:
            worker.refuses = False

        self._later(SESSION_MS, recover)

    def _disturb(self, _: SimulatedWorker) -> None:
        self._group.disturb(self._random.choice([0.05, 0.3, 1.0]))
        self._later(2 * SESSION_MS, lambda: self._group.disturb(0.0))

    def _forget(self, _: SimulatedWorker) -> None:
        self._group.forget()

    def _read(self) -> None:
        self._router.read(self._random.choice(list(TOPOLOGY.tasks)))

    def _heal(self) -> None:
        self._calm = True
        self._group.disturb(0.0)
        for worker in list(self.workers.values()):
            worker.refuses = False
            if worker.stopped:
                worker.resume()
        if all(worker.gone for worker in self.workers.values()):
            self._start("a")

    def _is_served(self) -> bool:
        running = [worker for worker in self.workers.values() if not (worker.gone or worker.stopped)]
        tasks = sorted(TOPOLOGY.tasks)
        active = sorted(task for worker in running for task in worker.active)
        standby = sorted(task for worker in running for task in worker.standby)
        known = {worker.generation for worker in running}
        return active == tasks and standby == (tasks if len(running) > 1 else []) and len(known) == 1

    def _roles(self) -> dict[str, object]:
        return {
            worker.name: (worker.generation, sorted(worker.active), sorted(worker.standby))
            for worker in self.workers.values()
            if not worker.gone
        }


def simulate(log: str, seed: int) -> Outcome:
    """Run the schedule of a seed; raises ``PromiseBroken``, naming what replays it."""
    logging.disable(logging.CRITICAL)
    try:
        return Schedule(log, seed).run()
    except PromiseBroken as error:
        raise PromiseBroken(f"{error} (scripts/simulate --log {log} --seed {seed} --schedules 1)") from error
    finally:
        logging.disable(logging.NOTSET)
