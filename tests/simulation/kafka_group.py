"""Memberships over Kafka in virtual time: their part in each rebalance is real, the consumer and broker are not.

The consumer does what aiokafka's does: no heartbeat from a join until the leader's message, a new join where the
coordinator wants one or does not answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import cast

from forebay.errors import ChangelogError, ForebayError
from forebay_changelog import Changelog
from forebay_worker.group.kafka.assignments import AssignmentTopic, digest
from forebay_worker.group.kafka.membership import KafkaMembership
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.messages import AssignmentInfo
from tests.simulation.coordinator import Coordinator, Status
from tests.simulation.scheduler import Scheduler
from tests.simulation.worker import POLICY, Ends, SimulatedWorker

_CHECK_INTERVAL_MS = 1_000.0
_RETRY_MS = 1_000.0


class SharedTopic:
    """The assignments' topic, as all members see it."""

    name = "app-assignments"

    def __init__(self) -> None:
        self._raw: list[bytes] = []

    def write(self, raw: bytes) -> None:
        """As ``AssignmentTopic.write``."""
        self._raw.append(raw)

    def newest(self) -> AssignmentInfo | None:
        """As ``AssignmentTopic.newest``."""
        readable = [AssignmentInfo.decode(raw) for raw in self._raw[-3:]]
        return max(reversed(readable), key=lambda info: info.generation, default=None)

    def find(self, digest_to_find: str) -> bytes | None:
        """As ``AssignmentTopic.find``."""
        return next((raw for raw in self._raw if digest(raw) == digest_to_find), None)


class Network:
    """Carries messages with delays, and loses some."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self._scheduler = scheduler
        self._random = random
        self.loss = 0.0

    def carry(self, action: Callable[[], None]) -> None:
        """Run an action at the other end, after a while or never."""
        if self._random.random() >= self.loss:
            longest_ms = 2_000 if self.loss and self._random.random() < self.loss else 20
            self._scheduler.after(self._random.uniform(1, longest_ms), action)


class KafkaGroup:
    """All members of a group, each with a consumer."""

    def __init__(self, scheduler: Scheduler, random: Random, times: GroupTimeouts) -> None:
        self._scheduler = scheduler
        self._times = times
        self._network = Network(scheduler, random)
        self._coordinator = Coordinator(scheduler, times.session_timeout_ms)
        self._topic = SharedTopic()
        self._consumers: dict[SimulatedWorker, _Consumer] = {}

    def join(self, worker: SimulatedWorker, ends: Ends) -> None:
        """Let a worker take part from now on."""
        leader = Leader(worker.topology, cast(Changelog, ends), POLICY)
        membership = KafkaMembership("kafka://broker:9092", leader, self._times, self._scheduler.clock)
        membership._first_incarnation = int(self._scheduler.now)
        membership._topic = cast(AssignmentTopic, self._topic)
        membership._subscription, membership._on_assignment = worker.subscription, worker.on_assignment
        worker.membership = membership
        consumer = _Consumer(worker, membership, self._scheduler, self._network, self._coordinator, self._times)
        self._consumers[worker] = consumer
        self._scheduler.after(0, lambda: worker.run(consumer.start))

    def leave(self, worker: SimulatedWorker) -> None:
        """Leave in good order."""
        self._consumers[worker].leave()
        worker.membership.leave()
        worker.gone = True

    def disturb(self, severity: float) -> None:
        """From now on, so large a part of what is sent is lost."""
        self._network.loss = severity

    def forget(self) -> None:
        """Brokers keep their groups."""

    def close(self) -> None:
        """It holds nothing."""


class _Consumer:
    def __init__(
        self,
        worker: SimulatedWorker,
        membership: KafkaMembership,
        scheduler: Scheduler,
        network: Network,
        coordinator: Coordinator,
        times: GroupTimeouts,
    ) -> None:
        self._worker = worker
        self._membership = membership
        self._scheduler = scheduler
        self._network = network
        self._coordinator = coordinator
        self._interval_ms = times.session_timeout_ms / 6
        self._request_timeout_ms = 2.0 * times.session_timeout_ms
        self._lives = 0
        self._id: str | None = None
        self._attempt = 0
        """Which join what arrives belongs to: older answers are ignored."""
        self._stable = False

    def start(self) -> None:
        """Become a member, with a new id."""
        self._membership._read_newest_assignment()
        self._membership._missed_round = True
        self._lives += 1
        self._id = f"{self._worker.name}-{self._worker.incarnation}-{self._lives}"
        self._join()
        self._later(_CHECK_INTERVAL_MS, self._check)

    def leave(self) -> None:
        """Tell the coordinator, which may not get it."""
        if self._id is not None:
            self._network.carry(lambda name=self._id: self._coordinator.leave(name))
        self._id, self._stable = None, False
        self._attempt += 1

    def _later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Run an action of this life of the consumer."""
        life = self._lives

        def run() -> None:
            if life == self._lives and self._id is not None:
                action()

        self._scheduler.after(delay_ms, lambda: self._worker.run(run))

    def _answer(self, action: Callable[[], None]) -> None:
        """An answer on its way back, to the join that is under way."""
        attempt = self._attempt

        def run() -> None:
            if attempt == self._attempt and self._id is not None:
                action()

        self._network.carry(lambda: self._worker.run(run))

    def _join(self) -> None:
        assert self._id is not None
        self._attempt += 1
        self._stable = False
        name, attempt, sent, mine = self._id, self._attempt, self._scheduler.now, self._membership.subscription()

        def joined(generation: int, leads: bool, members: Mapping[str, bytes]) -> None:
            self._answer(lambda: self._on_joined(sent, generation, leads, members))

        def again() -> None:
            if attempt == self._attempt and not self._stable:
                self._join()

        self._network.carry(lambda: self._coordinator.join(name, mine, joined))
        self._later(self._request_timeout_ms, again)

    def _on_joined(self, sent: float, generation: int, leads: bool, members: Mapping[str, bytes]) -> None:
        self._membership._on_heartbeat(sent)
        try:
            messages = self._membership.lead(members) if leads else None
        except (ForebayError, OSError):
            self._retry()
            return
        if self._worker.gone or self._id is None:
            return
        name, sync_sent = self._id, self._scheduler.now

        def synced(message: bytes | None) -> None:
            self._answer(lambda: self._on_synced(sync_sent, generation, message))

        self._network.carry(lambda: self._coordinator.sync(name, generation, messages, synced))

    def _on_synced(self, sent: float, generation: int, message: bytes | None) -> None:
        if message is None:
            self._join()
            return
        self._membership._on_heartbeat(sent)
        try:
            self._membership.follow(message)
        except (ForebayError, ChangelogError, OSError):
            self._retry()
            return
        if self._membership._steps_down:
            self._membership._steps_down = False
            self._retry(self._request_timeout_ms / 2)
            return
        self._stable = True
        self._heartbeat(generation)

    def _retry(self, pause_ms: float = _RETRY_MS) -> None:
        """Leave, and begin anew after a pause, as the membership's thread does."""
        self.leave()
        self._scheduler.after(pause_ms, lambda: self._worker.run(self.start))

    def _heartbeat(self, generation: int) -> None:
        if not self._stable:
            return
        assert self._id is not None
        name, sent = self._id, self._scheduler.now

        def request() -> None:
            status = self._coordinator.heartbeat(name, generation)
            self._answer(lambda: self._on_status(sent, status))

        self._network.carry(request)
        attempt = self._attempt
        self._later(self._interval_ms, lambda: self._heartbeat(generation) if attempt == self._attempt else None)

    def _on_status(self, sent: float, status: Status) -> None:
        if not self._stable:
            return
        if status == "unknown":
            self._retry(0)
            return
        self._membership._on_heartbeat(sent)
        if status == "rebalance":
            self._join()

    def _check(self) -> None:
        if self._stable and self._membership._wants_rebalance():
            self._membership.member.next_round_boot_ms = math.inf
            self._join()
        self._later(_CHECK_INTERVAL_MS, self._check)
