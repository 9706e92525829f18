"""The two messages of the worker group (KIP-535's SubscriptionInfo and AssignmentInfo), versioned.

Each is deflated JSON with its version ``v`` and ``least``, the oldest version whose readers understand it. A newer
writer only adds members; if that is not enough, it raises ``least``.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forebay.errors import ForebayError
from forebay.streams_metadata import NO_GENERATION, ClusterMap, Generation, HostInfo, cluster_map
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay_worker.group.assignor import Assignment, Placement
from forebay_worker.group.member_health import MemberHealth

VERSION = 2
_LEAST = 2


class UnreadableMessage(ForebayError):
    """A message is damaged, or no worker wrote it."""


class UnsupportedVersion(UnreadableMessage):
    """A message needs a newer reader; upgrade this worker."""


class Location(NamedTuple):
    """What a member shares its failures with: its rack and its machine, as far as they are known."""

    rack: str | None = None
    machine: str | None = None


@dataclass(frozen=True)
class SubscriptionInfo:
    """A member's message to the leader.

    ``offsets`` contains, for each task it has a copy of, the changelog position of each of the task's stores in
    the topology's order, or ``CAUGHT_UP`` or ``INCOMPLETE``; ``unchecked`` are those of the tasks whose copy was
    not compared with its logs since it was opened, or is not open. Kafka Streams sends sums; of several stores,
    one that is far behind would not show in them.

    ``restoring`` has, for tasks with a store that is ``INCOMPLETE``, the offsets to which its stores are restored.
    They are no lag and release no copy: they only show which of several copies is nearest.

    A member that does not say ``returns`` is not expected back once it is away.
    """

    process_id: str
    incarnation: int
    host: HostInfo
    fingerprint: str
    offsets: Mapping[TaskId, tuple[int, ...]] = field(default_factory=dict)
    known_generation: Generation = NO_GENERATION
    rack: str | None = None
    health: MemberHealth = MemberHealth.HEALTHY
    unchecked: frozenset[TaskId] = frozenset()
    restoring: Mapping[TaskId, tuple[int, ...]] = field(default_factory=dict)
    returns: bool = True

    @property
    def location(self) -> Location:
        """Where the member is."""
        return Location(self.rack, self.host.host)

    def encode(self) -> bytes:
        """The message's bytes."""
        return _encode(
            {
                "process_id": self.process_id,
                "incarnation": self.incarnation,
                "host": self.host,
                "fingerprint": self.fingerprint,
                "offsets": _offset_table(self.offsets),
                "restoring": _offset_table(self.restoring),
                "unchecked": sorted(self.unchecked),
                "known": self.known_generation,
                "rack": self.rack,
                "health": self.health,
                "returns": self.returns,
            }
        )

    @classmethod
    def decode(cls, raw: bytes) -> SubscriptionInfo:
        """The inverse of ``encode``; raises ``UnreadableMessage``."""
        with _read(raw, cls.__name__) as document:
            return cls(
                document["process_id"],
                document["incarnation"],
                HostInfo(*document["host"]),
                document["fingerprint"],
                _offsets_by_task(document["offsets"]),
                Generation(*document["known"]),
                document["rack"],
                MemberHealth(document["health"]),
                frozenset(TaskId(*task) for task in document["unchecked"]),
                _offsets_by_task(document["restoring"]),
                document["returns"],
            )


def _offset_table(offsets: Mapping[TaskId, tuple[int, ...]]) -> list[list[int]]:
    return [[*task, *of_stores] for task, of_stores in sorted(offsets.items())]


def _offsets_by_task(table: Iterable[list[int]]) -> dict[TaskId, tuple[int, ...]]:
    return {TaskId(ordinal, partition): tuple(of_stores) for ordinal, partition, *of_stores in table}


@dataclass(frozen=True)
class AssignmentInfo:
    """The leader's message to all members: the whole placement, as of one generation."""

    generation: Generation
    fingerprint: str
    hosts: Mapping[str, HostInfo]
    """Address by member."""
    assignment: Assignment
    ordinals: Mapping[str, int] = field(default_factory=dict)
    """The ordinal of each store in the leader's topology, so that the leader of the next topology can interpret
    the tasks."""
    not_returning: frozenset[str] = frozenset()
    """The members that will not come back once they are away. Why here: the leader by then may be another."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """The known racks, also of members that are away and have a place. Why here: as ``not_returning``."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """The machines of members that are away and have a place."""

    def location_of(self, member: str) -> Location:
        """Where a member is, or was before it went away."""
        machine = self.hosts[member].host if member in self.hosts else self.machines.get(member)
        return Location(self.racks.get(member), machine)

    def tasks_of(self, member: str) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
        """The active and the standby tasks of one member."""
        placements = self.assignment.current.items()
        return (
            frozenset(task for task, placement in placements if placement.active == member),
            frozenset(task for task, placement in placements if member in placement.standbys),
        )

    def active_partitions_by_host(self, topology: Topology) -> dict[HostInfo, frozenset[TopicPartition]]:
        """KIP-535's map of active topic-partitions."""
        return self._partitions_by_host(topology, active=True)

    def standby_partitions_by_host(self, topology: Topology) -> dict[HostInfo, frozenset[TopicPartition]]:
        """KIP-535's map of standby topic-partitions."""
        return self._partitions_by_host(topology, active=False)

    def map(self, topology: Topology) -> ClusterMap:
        """All members' StreamsMetadata."""
        return cluster_map(
            self.generation,
            topology.stores.values(),
            self.active_partitions_by_host(topology),
            self.standby_partitions_by_host(topology),
            self._process_ids(),
        )

    def _process_ids(self) -> dict[HostInfo, frozenset[str]]:
        by_host: dict[HostInfo, set[str]] = {}
        for member, host in self.hosts.items():
            by_host.setdefault(host, set()).add(member)
        return {host: frozenset(members) for host, members in by_host.items()}

    def _partitions_by_host(
        self, topology: Topology, *, active: bool
    ) -> dict[HostInfo, frozenset[TopicPartition]]:
        held: dict[HostInfo, set[TopicPartition]] = {host: set() for host in self.hosts.values()}
        for task, placement in self.assignment.current.items():
            for member in (placement.active,) if active else placement.standbys:
                held[self.hosts[member]].update(topology.topic_partitions(task))
        return {host: frozenset(partitions) for host, partitions in held.items()}

    def encode(self) -> bytes:
        """The message's bytes: members by number, placements as lists of such numbers in task order."""
        names = sorted(
            {name for side in self._sides() for placement in side.values() for name in placement.members}
            | self.hosts.keys()
            | self.racks.keys()
            | self.machines.keys()
        )
        number = {name: i for i, name in enumerate(names)}

        def table(placements: Mapping[TaskId, Placement]) -> list[Any]:
            return [
                [*task, *(number[name] for name in placement.members)]
                for task, placement in sorted(placements.items())
            ]

        current, target = self._sides()
        moving = {task: goal for task, goal in target.items() if current.get(task) != goal}
        return _encode(
            {
                "generation": self.generation,
                "fingerprint": self.fingerprint,
                # Of a member that is away the machine is known, without a port.
                "members": [[name, *self.hosts.get(name, (self.machines.get(name, ""), 0))] for name in names],
                "actual": table(current),
                "moving": table(moving),
                "ordinals": self.ordinals,
                "not_returning": sorted(self.not_returning),
                "racks": [self.racks.get(name) for name in names],
            }
        )

    @classmethod
    def decode(cls, raw: bytes) -> AssignmentInfo:
        """The inverse of ``encode``; raises ``UnreadableMessage``."""
        with _read(raw, cls.__name__) as document:
            names = [name for name, _, _ in document["members"]]

            def placements(table: list[list[int]]) -> dict[TaskId, Placement]:
                return {
                    TaskId(ordinal, partition): Placement(names[active], tuple(names[i] for i in standbys))
                    for ordinal, partition, active, *standbys in table
                }

            current = placements(document["actual"])
            return cls(
                Generation(*document["generation"]),
                document["fingerprint"],
                {name: HostInfo(host, port) for name, host, port in document["members"] if port},
                Assignment(current, {**current, **placements(document["moving"])}),
                document["ordinals"],
                frozenset(document["not_returning"]),
                {name: rack for name, rack in zip(names, document["racks"], strict=True) if rack is not None},
                {name: host for name, host, port in document["members"] if host and not port},
            )

    def _sides(self) -> tuple[Mapping[TaskId, Placement], Mapping[TaskId, Placement]]:
        return self.assignment.current, self.assignment.target


def _encode(document: dict[str, Any]) -> bytes:
    text = json.dumps({"v": VERSION, "least": _LEAST, **document}, separators=(",", ":"))
    return zlib.compress(text.encode(), 6)


@contextlib.contextmanager
def _read(raw: bytes, what: str) -> Iterator[dict[str, Any]]:
    """The document of a message; raises ``UnreadableMessage``, also for what is then missed in it."""
    try:
        document: dict[str, Any] = json.loads(zlib.decompress(raw))
        if document["least"] > VERSION:
            raise UnsupportedVersion(
                f"{what} of version {document['v']} needs a reader of version {document['least']}; this worker "
                f"reads version {VERSION}. Upgrade it."
            )
        yield document
    except (zlib.error, ValueError, LookupError, TypeError) as error:
        raise UnreadableMessage(
            f"{what} of {len(raw)} bytes is damaged, or no worker wrote it ({type(error).__name__}: {error})."
        ) from None
