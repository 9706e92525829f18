"""The two messages of the worker group (KIP-535's SubscriptionInfo and AssignmentInfo), versioned.

Each is deflated MessagePack with its version ``v`` and ``least``, the oldest version whose readers understand it.
A newer writer only adds members; if that is not enough, it raises ``least``.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from forebay.errors import ForebayError
from forebay.streams_metadata import NO_GENERATION, ClusterMap, Generation, HostInfo, cluster_map
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay_worker.group.assignor import Assignment, Placement
from forebay_worker.group.member_health import MemberHealth

VERSION = 3
_LEAST = 3


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
        return _encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> SubscriptionInfo:
        """The inverse of ``encode``; raises ``UnreadableMessage``."""
        with _read(raw, cls.__name__) as document:
            return msgspec.convert(document, cls)


_Numbered = tuple[list[str], dict[TaskId, list[int]], dict[TaskId, list[int]]]
"""Members, and by task the numbers of those that have it, and of those that will if they are others."""


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
    locations: Mapping[str, Location] = field(default_factory=dict)
    """Where each member is, or was if it is away and has a place. Why here: as ``not_returning``."""

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
        """The message's bytes: members by number, since the names of a thousand would not fit the topic."""
        current, target = self.assignment.current, self.assignment.target
        moving = {task: goal for task, goal in target.items() if current.get(task) != goal}
        names = sorted({name for side in (current, moving) for place in side.values() for name in place.members})
        number = {name: i for i, name in enumerate(names)}

        def numbered(placements: Mapping[TaskId, Placement]) -> dict[TaskId, list[int]]:
            return {task: [number[name] for name in place.members] for task, place in sorted(placements.items())}

        return _encode(self, assignment=(names, numbered(current), numbered(moving)))

    @classmethod
    def decode(cls, raw: bytes) -> AssignmentInfo:
        """The inverse of ``encode``; raises ``UnreadableMessage``."""
        with _read(raw, cls.__name__) as document:
            names, current, moving = msgspec.convert(document["assignment"], _Numbered)

            def named(numbered: Mapping[TaskId, list[int]]) -> dict[TaskId, Any]:
                return {
                    task: {"active": names[active], "standbys": [names[i] for i in standbys]}
                    for task, (active, *standbys) in numbered.items()
                }

            placed = named(current)
            document["assignment"] = {"current": placed, "target": {**placed, **named(moving)}}
            return msgspec.convert(document, cls)


def _encode(message: SubscriptionInfo | AssignmentInfo, **replaced: Any) -> bytes:
    document = {**vars(message), **replaced, "v": VERSION, "least": _LEAST}
    # Why in order: members find an assignment in its topic by its digest, and a later leader encodes it again.
    in_order = {name: _in_order(member) for name, member in document.items()}
    return zlib.compress(msgspec.msgpack.encode(in_order), 6)


def _in_order(member: Any) -> Any:
    if isinstance(member, Mapping):
        return dict(sorted(member.items()))
    return sorted(member) if isinstance(member, frozenset) else member


@contextlib.contextmanager
def _read(raw: bytes, what: str) -> Iterator[dict[str, Any]]:
    """The document of a message; raises ``UnreadableMessage``, also for what is then missed in it."""
    try:
        document: dict[str, Any] = msgspec.msgpack.decode(zlib.decompress(raw))
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
