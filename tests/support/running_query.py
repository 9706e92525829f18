"""A query whose batches end one after the other, as a checkpoint that Spark has written shows it."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forebay.store_spec import StoreSpec
from forebay.stored_keys import LogicalKey
from forebay.task_ids import TopicPartition
from forebay.topology_file import parse_topology
from forebay_changelog import Changelog, Consumer, Record, Wake
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint

_MAX_POLLS = 200


class RunningQuery:
    """A copy of a checkpoint of which no batch has ended so far."""

    def __init__(self, written: Path, directory: Path) -> None:
        self._written = written
        self.path = directory
        shutil.copytree(written, directory)
        for commit in (directory / "commits").iterdir():
            commit.unlink()
        self.batches = sorted(int(path.name) for path in (written / "commits").iterdir() if path.name.isdigit())

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.open(str(self.path))

    def end(self, batch: int) -> None:
        """End a batch as Spark does: its file appears whole."""
        target = self.path / "commits" / str(batch)
        partial = target.with_name(f".{batch}.tmp")
        shutil.copy(self._written / "commits" / str(batch), partial)
        partial.rename(target)

    def run_again(self, batch: int) -> None:
        """End a batch a second time, a second later, after its file in ``commits`` was deleted."""
        commit = self.path / "commits" / str(batch)
        later_ns = commit.stat().st_mtime_ns + 1_000_000_000
        commit.unlink()
        self.end(batch)
        os.utime(commit, ns=(later_ns, later_ns))

    def end_all(self) -> int:
        """End every batch; returns the last."""
        for batch in self.batches:
            self.end(batch)
        return self.batches[-1]


def store(**fields: Any) -> StoreSpec:
    """A store of three partitions, of which the state has two, with a spark_state unless it has one."""
    table = {"name": "tapped", "spark_state": {}, **fields}
    subtopology = {"name": "s", "partitions": 3, "store": [table]}
    return parse_topology({"application_id": "a", "subtopology": [subtopology]}).stores["tapped"]


def records(changelog: Changelog, spec: StoreSpec) -> list[tuple[LogicalKey, bytes | None]]:
    """Every record of a store's log but heartbeats, by partition in order."""
    consumer = changelog.consumer(replay=True)
    found = []
    try:
        for partition in range(spec.partitions):
            tp = TopicPartition(spec.topic, partition)
            consumer.assign(tp, 0)
            for _, key, value, timestamp_ms, is_heartbeat in _to_the_end(consumer):
                if not is_heartbeat:
                    logical = spec.stored_keys.split_changelog(key, timestamp_ms)
                    assert spec.partition_of(logical.plain) == partition
                    found.append((logical, value))
            consumer.unassign(tp)
    finally:
        consumer.close()
    return found


def _to_the_end(consumer: Consumer) -> Iterator[Record]:
    never_set = Wake()
    for _ in range(_MAX_POLLS):
        for batch in consumer.poll(100_000):
            yield from batch.records
            if batch.position >= batch.end.offset:
                return
        consumer.wait(never_set, 0.1)
    raise TimeoutError("The log does not deliver what it has.")


def content(changelog: Changelog, spec: StoreSpec) -> dict[Any, Any]:
    """What a store's log folds to: JSON values by JSON key, with its times behind it where it has any."""
    folded = {}
    for logical, value in records(changelog, spec):
        key = json.loads(spec.key_codec.to_json(logical.plain))
        named = json.dumps([key, *logical.times_ms] if logical.times_ms else key)
        if value is None:
            folded.pop(named, None)
        else:
            folded[named] = json.loads(value)
    return folded
