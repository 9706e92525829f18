"""The leader's part, whatever the group's backend: computes the next assignment from the members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from forebay.changelog import Changelog
from forebay.metadata import Generation, HostInfo
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay_worker.group.assignor import NO_ASSIGNMENT, Assignment, AssignmentPolicy, Member, Placement, assign
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo
from forebay_worker.state.offsets import CAUGHT_UP, INCOMPLETE

_OffsetsByTask = Mapping[TaskId, tuple[int, ...]]

_NEVER_CAUGHT_UP = 1 << 63
"""The lag of what never was consistent: beyond any that is counted."""


@dataclass(frozen=True)
class GroupTimeouts:
    """The group's durations, in milliseconds; each is the setting of that name."""

    session_timeout_ms: int
    standby_rebuild_delay_ms: int
    initial_rebalance_delay_ms: int
    probing_rebalance_interval_ms: int = 10_000


@dataclass
class Leader:
    """Makes assignments for members of its own topology; the others keep what they hold."""

    topology: Topology
    changelog: Changelog
    policy: AssignmentPolicy
    _settled_in: tuple[Generation, Mapping[str, str | None], Mapping[str, MemberHealth]] | None = None
    """The generation in which this leader found nothing to change, and its members' racks and healths at that
    time."""

    def alike(self, subscriptions: Mapping[str, SubscriptionInfo]) -> dict[str, SubscriptionInfo]:
        """Those with the leader's topology."""
        return {
            name: subscription
            for name, subscription in subscriptions.items()
            if subscription.fingerprint == self.topology.fingerprint
        }

    def before(self, previous: AssignmentInfo | None) -> Assignment:
        """The assignment to start from: the previous one; from another topology, the part about the same
        stores."""
        if previous is None:
            return NO_ASSIGNMENT
        if previous.fingerprint == self.topology.fingerprint:
            return previous.assignment
        ordinals = {
            sub.ordinal: previous.ordinals[store.name]
            for sub in self.topology.subtopologies
            for store in sub.stores
            if store.name in previous.ordinals
        }

        def translated(placements: Mapping[TaskId, Placement]) -> dict[TaskId, Placement]:
            there = {
                task: TaskId(ordinals[task.ordinal], task.partition)
                for task in self.topology.tasks
                if task.ordinal in ordinals
            }
            return {task: placements[was] for task, was in there.items() if was in placements}

        return Assignment(translated(previous.assignment.current), translated(previous.assignment.target))

    def elsewhere(
        self, subscriptions: Mapping[str, SubscriptionInfo], before: Assignment
    ) -> dict[str, str | None]:
        """The racks of those with another topology that hold something: they serve it, and will be back."""
        held_by, alike = holders(before), self.alike(subscriptions)
        return {
            name: subscription.rack
            for name, subscription in subscriptions.items()
            if name in held_by and name not in alike
        }

    def next_assignment(
        self,
        present: Mapping[str, SubscriptionInfo],
        absent: Mapping[str, str | None],
        previous: AssignmentInfo | None,
        generation: Generation,
    ) -> AssignmentInfo | None:
        """The assignment of a new generation, None if it would equal the previous one.

        ``absent`` maps each member that is away to its rack, as long as its place is kept. A member that said that
        it would not come back keeps none.
        """
        before = self.before(previous)
        gone_for_good = frozenset() if previous is None else previous.not_returning
        absent = {name: rack for name, rack in absent.items() if name not in gone_for_good}
        not_returning = frozenset(name for name, subscription in present.items() if not subscription.returns)
        hosts = {name: subscription.host for name, subscription in present.items()}
        racks = _fail_together(present, absent, {} if previous is None else previous.hosts)
        healths = {name: subscription.health for name, subscription in present.items()}
        same_members = (
            previous is not None
            and before is previous.assignment
            and dict(previous.hosts) == hosts
            and previous.not_returning == not_returning
        )
        if same_members and previous is not None and self._settled_in == (previous.generation, racks, healths):
            return None
        lags = self.lags(
            {name: subscription.offsets for name, subscription in present.items()},
            {name: subscription.restoring for name, subscription in present.items()},
        )
        members = [
            Member(
                name,
                lags.get(name, {}),
                rack=racks[name],
                health=healths[name],
                unchecked=subscription.unchecked,
            )
            for name, subscription in present.items()
        ]
        members += [Member(name, absent=True, rack=racks[name]) for name in absent]
        outcome = assign(self.topology.tasks, members, before, self.policy)
        if same_members and previous is not None and outcome == before:
            if outcome.settled:
                self._settled_in = (previous.generation, racks, healths)
            return None
        return AssignmentInfo(
            generation,
            self.topology.fingerprint,
            hosts,
            outcome,
            dict(self.topology.ordinal_by_store),
            not_returning,
        )

    def lags(
        self, offsets: Mapping[str, _OffsetsByTask], restoring: Mapping[str, _OffsetsByTask] = MappingProxyType({})
    ) -> dict[str, dict[TaskId, int]]:
        """How far behind each member's copies are, in records of the store that is farthest behind its end; where
        no end is known, behind the foremost copy.

        A copy with a store that is still ``restoring`` is behind every other, and the nearer, the further it is
        restored.
        """
        held_by_any = {task for held in offsets.values() for task in held}
        partitions = {
            task: list(self.topology.topic_partitions(task)) for task in self.topology.tasks if task in held_by_any
        }
        ends = self.changelog.end_offsets([tp for tps in partitions.values() for tp in tps])
        foremost: dict[TopicPartition, int] = {}
        for held in offsets.values():
            for task, positions in held.items():
                for tp, position in zip(partitions.get(task, ()), positions, strict=False):
                    foremost[tp] = max(position, foremost.get(tp, 0))
        ends = foremost | ends

        def behind(tp: TopicPartition, position: int, restored_to: int) -> int:
            if position == CAUGHT_UP:
                return 0
            if position == INCOMPLETE:
                return _NEVER_CAUGHT_UP + max(0, ends[tp] - restored_to)
            return max(0, ends[tp] - position)

        def farthest_behind(task: TaskId, positions: tuple[int, ...], restored_to: tuple[int, ...]) -> int:
            known = restored_to or (0,) * len(positions)
            return max(map(behind, partitions[task], positions, known), default=_NEVER_CAUGHT_UP)

        return {
            name: {
                task: farthest_behind(task, positions, restoring.get(name, {}).get(task, ()))
                for task, positions in held.items()
                if task in partitions
            }
            for name, held in offsets.items()
        }


def _fail_together(
    present: Mapping[str, SubscriptionInfo], absent: Mapping[str, str | None], hosts: Mapping[str, HostInfo]
) -> dict[str, str | None]:
    """What each member shares its failures with: its rack, or its machine while all are on one rack.

    ``hosts`` are those that absent members had.
    """
    racks = {**{name: subscription.rack for name, subscription in present.items()}, **absent}
    if len(set(racks.values()) - {None}) > 1:
        return racks
    machines = {name: hosts[name].host for name in absent if name in hosts}
    return racks | machines | {name: subscription.host.host for name, subscription in present.items()}


def superseded(by: HostInfo | str, mine: HostInfo) -> str:
    """The complaint of a worker whose process id another one has, that was started later."""
    return (
        f"The worker at {by} was started later with this one's process id: the state directory of one is a copy "
        f"of the other's. This one, at {mine}, gets no tasks. Stop one, and remove process.json from its state "
        "directory."
    )


def may_lead(mine: str, fingerprints: Iterable[str], *, led: bool) -> bool:
    """Whether a member has the most frequent topology: one misconfigured worker must not lead the rest.

    Of several that are equally frequent, the one that has led stays, else the first by name is chosen.
    """
    counts = Counter(fingerprints)
    most = max(counts.values())
    foremost = [fingerprint for fingerprint in sorted(counts) if counts[fingerprint] == most]
    return mine in foremost if led else mine == foremost[0]


def holders(assignment: Assignment) -> set[str]:
    """Every member with an intended place."""
    return {name for placement in assignment.target.values() for name in placement.members}
