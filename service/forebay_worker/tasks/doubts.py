"""Doubts: what is known to be wrong about where a store's keys are, or about its log.

A hit may still be served, but no lag of it can be proven, and a miss proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from forebay.errors import LogDiverged, PartitionerMismatch, Problem
from forebay.store_spec import StoreSpec


class Doubt(NamedTuple):
    """Why an answer proves less than it would otherwise.

    The text's first sentence says what is wrong, the others what to do.
    """

    problem: type[Problem]
    text: str
    is_accepted: bool = False
    """Whether the topology says so: then only misses are refused."""


def records_lost(spec: StoreSpec) -> Doubt:
    """Records that were applied are no longer in the log."""
    return Doubt(
        LogDiverged,
        f"The log of {spec.name!r} lost records that were applied, and may have others in their place. The "
        "replica is being rebuilt: ask again, or without bounds.",
    )


def repartitioned(spec: StoreSpec, partitions: int) -> Doubt:
    """The log has another number of partitions than the topology."""
    return Doubt(
        PartitionerMismatch,
        f"The log of {spec.name!r} has {partitions} partitions now, and the topology has {spec.partitions}, so "
        "the newest value of a key may be in another partition. Give the store a new name and a log of that size, "
        "or set accept_misplaced = true.",
        spec.accept_misplaced,
    )


def misplaced(spec: StoreSpec) -> Doubt:
    """Keys are in partitions where the partitioner does not put them."""
    return Doubt(
        PartitionerMismatch,
        f"Keys of {spec.name!r} are not where the partitioner {spec.partitioner!r} puts them, so the newest value "
        "of a key may be in another partition. Set the partitioner to the writer's, or to 'unknown', or delete "
        "the misplaced keys where they are, or set accept_misplaced = true.",
        spec.accept_misplaced,
    )


def found_elsewhere(spec: StoreSpec) -> Doubt:
    """Another replica of the store has found what this one has not."""
    return Doubt(
        PartitionerMismatch,
        f"Another replica of {spec.name!r} has found keys in partitions that are not theirs, so the newest value "
        "of a key may be in another partition. GET /v1/health names that replica and the remedy.",
        spec.accept_misplaced,
    )
