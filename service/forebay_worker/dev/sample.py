"""The stream that the cluster of ``forebay dev`` serves: orders of three customers."""

from __future__ import annotations

import json
import time
import uuid

from forebay.changelog import Heartbeat
from forebay.changelog.base import Changelog, Rows
from forebay.store_spec import StoreSpec

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


class SampleStream:
    """Writes the sample's store as a Spark query would: one batch after another, each with a heartbeat."""

    def __init__(self, changelog: Changelog, spec: StoreSpec) -> None:
        self._changelog = changelog
        self._spec = spec
        self._query_id = str(uuid.uuid4())
        self._batches = 0

    def begin(self) -> None:
        """Write a value for each customer. Raises ``ChangelogError``."""
        self._append(FIRST)

    def order(self) -> None:
        """Write one more order of Ann's. Raises ``ChangelogError``."""
        self._append({"ann": {"orders": FIRST["ann"]["orders"] + self._batches}})

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
