"""A worker as its group sees it: it holds what it is assigned, and catches up after a while."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from forebay.streams_metadata import NO_GENERATION, Generation, HostInfo
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_worker.group.membership import Membership
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.group.placement import AssignmentPolicy
from tests.simulation.scheduler import Scheduler

RECORDS = 10
"""In each partition of the log."""
POLICY = AssignmentPolicy(num_standby_replicas=1, acceptable_recovery_lag=RECORDS // 2, max_warmup_replicas=2)
TOPOLOGY = parse_topology(
    {"application_id": "app", "subtopology": [{"name": "s", "partitions": 4, "store": [{"name": "a"}]}]}
)


class Judge(Protocol):
    """What a run is judged by."""

    def on_assignment(self, worker: SimulatedWorker, info: AssignmentInfo) -> None:
        """A worker is about to adopt an assignment."""
        ...


@dataclass
class Ends:
    """A changelog of which only the ends are read; ``pause`` may let time pass meanwhile."""

    pause: Callable[[], None] = lambda: None

    def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The same for all."""
        self.pause()
        return dict.fromkeys(partitions, RECORDS)


@dataclass(eq=False)
class SimulatedWorker:
    """One life of a process; ``offsets`` are what is on its disk."""

    name: str
    incarnation: int
    scheduler: Scheduler
    judge: Judge
    catch_up_ms: Callable[[], float]
    topology: Topology = TOPOLOGY
    offsets: dict[TaskId, tuple[int, ...]] = field(default_factory=dict)
    host: HostInfo = field(init=False)
    rack: str | None = None
    membership: Membership = field(init=False)
    designated: frozenset[TaskId] = frozenset()
    generation: Generation = NO_GENERATION
    info: AssignmentInfo | None = None
    built: set[TaskId] = field(default_factory=set)
    """Tasks that were begun from nothing."""
    refuses: bool = False
    """Whether it cannot follow assignments, as with a full disk."""
    stopped: bool = False
    """As by SIGSTOP, or within a round that takes long: whatever reaches it waits."""
    gone: bool = False
    """Crashed, or left."""
    interrupted_ms: float = 0.0
    """When it was last stopped or resumed, or released a copy."""
    _deferred: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.host = HostInfo(self.name, 1)

    @property
    def active(self) -> frozenset[TaskId]:
        """What it answers for as active, its role judged by its lease."""
        if self.gone or self.scheduler.now >= self.membership.lease_until_boot_ms:
            return frozenset()
        return self.designated

    @property
    def standby(self) -> set[TaskId]:
        """What it serves beside that."""
        return self.offsets.keys() - self.active

    def subscription(self) -> SubscriptionInfo:
        """Its message to the leader."""
        return SubscriptionInfo(
            self.name,
            self.incarnation,
            self.host,
            self.topology.fingerprint,
            dict(self.offsets),
            rack=self.rack,
        )

    def on_assignment(self, info: AssignmentInfo) -> None:
        """Hold what is assigned; raises ``OSError`` if it cannot."""
        if self.refuses:
            raise OSError("no space left")
        self.judge.on_assignment(self, info)
        self.generation, self.info = info.generation, info
        self.designated, standbys = info.tasks_of(self.name)
        if self.name in info.hosts:
            held = self.designated | standbys
            self.built |= held - self.offsets.keys()
            if self.offsets.keys() - held:
                self.interrupted_ms = self.scheduler.now
            self.offsets = {task: self.offsets.get(task, (0,)) for task in sorted(held)}
            for task in sorted(held):
                self.scheduler.after(self.catch_up_ms(), lambda task=task: self.run(lambda: self.catch_up(task)))

    def catch_up(self, task: TaskId) -> None:
        """A copy reaches the log's end."""
        if task in self.offsets:
            self.offsets[task] = (RECORDS,)

    def run(self, action: Callable[[], None]) -> None:
        """Run an action of the process: never once it is gone, and not while it is stopped."""
        if self.stopped:
            self._deferred.append(action)
        elif not self.gone:
            action()

    def stop(self) -> None:
        """Let nothing happen in it from now on."""
        self.stopped, self.interrupted_ms = True, self.scheduler.now

    def resume(self) -> None:
        """Go on, with all that waited."""
        self.stopped, self.interrupted_ms = False, self.scheduler.now
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            # Not at once: it may have been stopped within another action.
            self.scheduler.after(0, lambda action=action: self.run(action))
