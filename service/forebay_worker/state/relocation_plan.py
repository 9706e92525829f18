"""Plans which stores on disk under another ordinal than the topology's move where (KIP-816).

Nothing here touches the disk. A store keeps its name and its partition when it moves, and store names are unique
within a topology, so the places of two stores never coincide: swaps and cycles of ordinals need no temporary
names. Only a store found under two ordinals at once can conflict with itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay_worker.state.layout import SET_ASIDE, store_path
from forebay_worker.state.reserved_records import StoreIdentity, difference, store_identity

StoreOnDisk = tuple[TaskId, str]
"""A store directory, by its task and the store's name."""


@dataclass(frozen=True)
class StoreContent:
    """A store's own metadata on disk; empty if it cannot be read or was never committed to."""

    identity: StoreIdentity | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The next offset to apply, by topic-partition, of the last commit or of the ``.checkpoint``."""
    restored: bool = False
    """Whether the store has recorded that it once reached an end of its log."""


@dataclass(frozen=True)
class Move:
    """One store's rename, to the same partition's task of another ordinal, or aside if ``target`` is None."""

    store: str
    topic: str
    source: TaskId
    target: TaskId | None
    reason: str

    @property
    def topic_partition(self) -> TopicPartition:
        """The changelog partition that the store replays."""
        return TopicPartition(self.topic, self.source.partition)

    def __str__(self) -> str:
        place = store_path(self.target, self.store) if self.target else f"{SET_ASIDE}/"
        return f"{store_path(self.source, self.store)} → {place}: {self.reason}"


@dataclass(frozen=True)
class Left:
    """A store that stays where it is although the topology has no place for it."""

    task: TaskId
    store: str
    reason: str

    def __str__(self) -> str:
        return f"{store_path(self.task, self.store)} is left: {self.reason}"


@dataclass(frozen=True)
class Plan:
    """The moves of a relocation, in order, and the stores it leaves."""

    moves: tuple[Move, ...]
    left: tuple[Left, ...]


def collisions(found: Iterable[StoreOnDisk], topology: Topology) -> tuple[StoreOnDisk, ...]:
    """The stores found under several ordinals at once: a plan needs their contents."""
    return tuple(
        (task, store) for (store, _), tasks in _groups(found, topology).items() if len(tasks) > 1 for task in tasks
    )


def plan_relocation(
    found: Iterable[StoreOnDisk],
    topology: Topology,
    contents: Mapping[StoreOnDisk, StoreContent] | None = None,
) -> Plan:
    """The plan that brings every store found to its ordinal in the topology.

    No move's target exists when it is its turn. If a store is found under several ordinals, one stays and the
    others are set aside: the one in its place stays, unless it contains nothing that the topology could use and
    another does, or another of the same log has the larger committed offset. Stores and partitions unknown to the
    topology are left. ``contents`` describes the stores in ``collisions``; any not listed counts as unreadable.
    """
    found = list(found)
    contents = contents or {}
    moves: list[Move] = []
    for (store, partition), tasks in _groups(found, topology).items():
        spec = topology.stores[store]
        target = TaskId(topology.ordinal_by_store[store], partition)
        # The store in place comes first, so it wins ties.
        keeper, *others = sorted(tasks, key=lambda task: (task != target, task))
        for other in others:
            known, rival = (contents.get((task, store), StoreContent()) for task in (keeper, other))
            if _surpasses(rival, known, spec, partition):
                keeper = other
        moves += [
            Move(store, spec.topic, task, None, f"{keeper} holds the same store and is preferred")
            for task in tasks
            if task != keeper
        ]
        if keeper != target:
            moves.append(Move(store, spec.topic, keeper, target, f"its ordinal is {target.ordinal} now"))
    left = [Left(*on_disk, reason) for on_disk in found if (reason := _why_left(*on_disk, topology))]
    return Plan(tuple(moves), tuple(left))


def usable_offset(content: StoreContent, spec: StoreSpec, partition: int) -> int | None:
    """The committed offset; None without one, or if the store was built from something else."""
    found = content.identity
    if found is not None and difference(found, store_identity(found.log, spec, partition)) is not None:
        return None
    return content.offsets.get(TopicPartition(spec.topic, partition))


def _groups(found: Iterable[StoreOnDisk], topology: Topology) -> dict[tuple[str, int], list[TaskId]]:
    """The tasks under which each partition of each store of the topology was found."""
    groups: dict[tuple[str, int], list[TaskId]] = {}
    for task, store in found:
        if _why_left(task, store, topology) is None:
            groups.setdefault((store, task.partition), []).append(task)
    return groups


def _why_left(task: TaskId, store: str, topology: Topology) -> str | None:
    spec = topology.stores.get(store)
    if spec is None:
        return "the topology has no store of this name"
    if task.partition >= spec.partitions:
        return f"the store has {spec.partitions} partitions, from 0"
    return None


def _surpasses(rival: StoreContent, keeper: StoreContent, spec: StoreSpec, partition: int) -> bool:
    offset, rival_offset = (usable_offset(content, spec, partition) for content in (keeper, rival))
    if rival_offset is None:
        return False
    if offset is None:
        return True
    if keeper.identity is None or rival.identity is None or keeper.identity.log != rival.identity.log:
        return False
    return rival_offset > offset
