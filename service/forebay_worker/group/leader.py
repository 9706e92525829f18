"""The leader's part, whatever the group's backend: computes the next assignment from the members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from forebay.streams_metadata import Generation
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.group.assignor import Assignment, AssignmentPolicy, Member, assign
from forebay_worker.group.election import holders
from forebay_worker.group.member_health import MemberHealth
from forebay_worker.group.messages import AssignmentInfo, Location, SubscriptionInfo
from forebay_worker.group.previous_assignment import assignment_to_continue
from forebay_worker.state.offsets_file import CAUGHT_UP, INCOMPLETE

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

    def next_assignment(
        self,
        present: Mapping[str, SubscriptionInfo],
        absent: Mapping[str, Location],
        previous: AssignmentInfo | None,
        generation: Generation,
    ) -> AssignmentInfo | None:
        """The assignment of a new generation, None if it would equal the previous one.

        ``absent`` maps each member that is away to where it was, as long as its place is kept. A member that said
        that it would not come back keeps none.
        """
        before = assignment_to_continue(self.topology, previous)
        gone_for_good = frozenset() if previous is None else previous.not_returning
        absent = {name: location for name, location in absent.items() if name not in gone_for_good}
        not_returning = frozenset(name for name, subscription in present.items() if not subscription.returns)
        hosts = {name: subscription.host for name, subscription in present.items()}
        locations = {**{name: subscription.location for name, subscription in present.items()}, **absent}
        racks = _fail_together(locations)
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
        outcome = self._assigned(members, before)
        with_place = holders(outcome) | hosts.keys()
        info = AssignmentInfo(
            generation,
            self.topology.fingerprint,
            hosts,
            outcome,
            dict(self.topology.ordinal_by_store),
            not_returning,
            {name: location for name, location in locations.items() if name in with_place},
        )
        if previous is None or previous != replace(info, generation=previous.generation):
            return info
        if outcome.settled:
            self._settled_in = (previous.generation, racks, healths)
        return None

    def _assigned(self, members: Sequence[Member], before: Assignment) -> Assignment:
        """Global tasks go to every member that is there, the others as the policy says."""
        shared_tasks = frozenset(filter(self.topology.is_global, self.topology.tasks))
        own_tasks = frozenset(self.topology.tasks) - shared_tasks
        own = assign(own_tasks, members, before.of(own_tasks), self.policy)
        present = [member for member in members if not member.absent]
        able = [member for member in present if member.health is not MemberHealth.EVICTED] or present
        everywhere = replace(self.policy, num_standby_replicas=max(0, len(able) - 1))
        shared = assign(shared_tasks, present, before.of(shared_tasks), everywhere)
        return Assignment({**own.current, **shared.current}, {**own.target, **shared.target})

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


def _fail_together(locations: Mapping[str, Location]) -> dict[str, str | None]:
    """What each member shares its failures with: its rack, or its machine while all are on one rack."""
    racks = {name: location.rack for name, location in locations.items()}
    if len(set(racks.values()) - {None}) > 1:
        return racks
    return {name: location.machine or location.rack for name, location in locations.items()}
