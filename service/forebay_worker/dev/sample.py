"""The stream that the cluster of ``forebay dev`` serves: orders of three customers."""

from __future__ import annotations

import contextlib
import json
import time
import uuid

from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Heartbeat
from forebay_changelog.base import Changelog, Rows
from forebay_changelog.log_reader import last_records

TOPOLOGY = """\
application_id = "dev"

[[subtopology]]
name = "orders"
partitions = 2

[[subtopology.store]]
name = "orders_by_customer"   # key-value; string keys, JSON values
"""
STORE = "orders_by_customer"
FIRST = {"ann": {"orders": 1}, "bob": {"orders": 7}, "zoe": {"orders": 3}}
_BUYER = "ann"
_LAST = 20
"""Each batch of a run has a record of the buyer's, and in each partition a heartbeat."""


class SampleStream:
    """Writes the sample's store as a Spark query would: one batch after another, each with a heartbeat."""

    def __init__(self, changelog: Changelog, spec: StoreSpec) -> None:
        self._changelog = changelog
        self._spec = spec
        self._query_id = str(uuid.uuid4())
        self._batches = 0
        self._orders = FIRST[_BUYER]["orders"]

    def begin(self) -> None:
        """Write a value for each customer, Ann's as an earlier run left it. Raises ``ChangelogError``."""
        self._orders = self._last_orders()
        self._append({**FIRST, _BUYER: {"orders": self._orders}})

    def order(self) -> None:
        """Write one more order of Ann's. Raises ``ChangelogError``."""
        self._orders += 1
        self._append({_BUYER: {"orders": self._orders}})

    def _last_orders(self) -> int:
        """How many orders of Ann's are in the log, as many as at first if it is new."""
        partitioner = self._spec.stream_partitioner
        assert partitioner is not None
        tp = TopicPartition(self._spec.topic, partitioner.partition(_BUYER.encode(), self._spec.partitions))
        with contextlib.closing(self._changelog.consumer()) as consumer:
            records, _ = last_records(consumer, tp, _LAST, self._changelog.end_offsets([tp]).get(tp, 0))
        values = [value for _, key, value, _, _ in records if key == _BUYER.encode() and value is not None]
        return int(json.loads(values[-1])["orders"]) if values else self._orders

    def _append(self, values: dict[str, dict[str, int]]) -> None:
        beat = Heartbeat(int(time.time() * 1000), self._query_id, self._batches)
        self._changelog.append_batch(
            self._spec.topic,
            writer=self._spec.name,
            query_id=self._query_id,
            batch_id=self._batches,
            rows=self._by_partition(values),
            heartbeat=beat.value(),
        )
        self._batches += 1

    def _by_partition(self, values: dict[str, dict[str, int]]) -> Rows:
        partitioner = self._spec.stream_partitioner
        assert partitioner is not None
        rows: dict[int, list[tuple[bytes, bytes | None]]] = {}
        for key, value in values.items():
            record = (key.encode(), json.dumps(value, separators=(",", ":")).encode())
            rows.setdefault(partitioner.partition(record[0], self._spec.partitions), []).append(record)
        return rows
