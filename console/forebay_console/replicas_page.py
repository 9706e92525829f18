"""``GET /v1/stores/{store}/replicas``: the replicas of partitions, that which reads go to first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec import UNSET

from forebay.wire.answer_schemas.members import Role
from forebay_console.answer_schemas import LiveReplica, PartitionCondition
from forebay_web.health.replica_states import ReplicaState, condition, first_replica, in_order_of_reads


def partition_replicas(partition: int, replicas: Sequence[ReplicaState]) -> PartitionCondition:
    """One partition of the answer."""
    first = first_replica(replicas)
    return PartitionCondition(partition, condition(first), [*map(_replica, in_order_of_reads(replicas))])


def _replica(replica: ReplicaState) -> LiveReplica:
    """One replica; members that say nothing are left out."""
    return LiveReplica(
        *replica.lag,
        host=replica.host,
        role=cast(Role, replica.role),
        live=replica.live,
        lagging=replica.lagging,
        failure=UNSET if replica.failure is None else replica.failure,
        restored_records=UNSET if replica.restored_records is None else replica.restored_records,
        restore_seconds_left=UNSET if replica.restored_records is None else replica.restore_seconds_left,
    )
