"""The topology: what one application keeps, as sub-topologies and their stores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forebay.store_spec import StoreSpec
from forebay.task_ids import TaskId, TopicPartition


@dataclass(frozen=True)
class SubTopology:
    """Stores with the same partitioning that are assigned together; the ordinal is the place in the file."""

    ordinal: int
    name: str
    partitions: int
    stores: tuple[StoreSpec, ...]
    is_global: bool = False
    """Whether every worker holds all partitions (KIP-116's global tasks)."""


@dataclass(frozen=True)
class Topology:
    """What one application keeps: an ordered list of sub-topologies."""

    application_id: str
    subtopologies: tuple[SubTopology, ...]
    stores: Mapping[str, StoreSpec] = field(init=False, compare=False)
    """Every store, by name."""

    def __post_init__(self) -> None:
        stores = {spec.name: spec for sub in self.subtopologies for spec in sub.stores}
        object.__setattr__(self, "stores", stores)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that identify a topology."""
        text = json.dumps(
            [
                self.application_id,
                [_chosen(sub) for sub in self.subtopologies],
            ],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(TaskId(sub.ordinal, p) for sub in self.subtopologies for p in range(sub.partitions))

    def is_global(self, task: TaskId) -> bool:
        """Whether every worker holds a task."""
        return self.subtopologies[task.ordinal].is_global

    def stores_of(self, task: TaskId) -> tuple[StoreSpec, ...]:
        """The stores of which a task holds one partition."""
        return self.subtopologies[task.ordinal].stores

    def topic_partitions(self, task: TaskId) -> Iterator[TopicPartition]:
        """The changelog partitions that a task replays."""
        return (TopicPartition(spec.topic, task.partition) for spec in self.stores_of(task))

    @cached_property
    def ordinal_by_store(self) -> Mapping[str, int]:
        """The ordinal of each store's sub-topology."""
        return {spec.name: sub.ordinal for sub in self.subtopologies for spec in sub.stores}


def _chosen(sub: SubTopology) -> list[Any]:
    """What a sub-topology is identified by."""
    chosen = [sub.ordinal, sub.partitions, [store.chosen() for store in sub.stores]]
    return [*chosen, "global"] if sub.is_global else chosen
