"""A replica that is held, for reads of it."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forebay.clock import boot_ms
from forebay.lag import Progress
from forebay.state_store import CommittedOffset
from forebay.stored_values import stamp
from forebay.streams_metadata import StreamsMetadataState
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology_file import parse_topology
from forebay.wire.parameters import ReadParameters
from forebay_worker.reads.admission import Admission
from forebay_worker.reads.disk_reads import DiskReads
from forebay_worker.reads.keys import Batched, Reads
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory
from forebay_worker.tasks.replica import Replica

MEBIBYTE = 1 << 20
IN_MEMORY = DiskReads(lambda: False)
"""Of reads that need no disk."""


def held(directory: Path, partition: int = 0, **of_the_store: object) -> tuple[Admission, Replica]:
    """A replica with one record, and the admission that decides whether it may answer."""
    store = {"name": "counts", **of_the_store}
    topology = parse_topology(
        {"application_id": "a", "subtopology": [{"name": "s", "partitions": partition + 1, "store": [store]}]}
    )
    spec = topology.stores["counts"]
    rocksdb = RocksDbStore("counts", directory / "counts", RocksDbMemory(8 * MEBIBYTE, 8 * MEBIBYTE).options())
    rocksdb.put(spec.stored_keys.stored(b"k", *[5_000] * spec.stored_keys.times), stamp(5_000) + b"1")
    rocksdb.commit({TopicPartition(spec.topic, partition): CommittedOffset(1, 1)})
    now = boot_ms()
    progress = Progress(1, 1, 1, 0, 1, now, now, now, 1, now)
    replica = Replica.opened(spec, TaskId(0, partition), rocksdb, "log")
    replica.publish(progress=progress, restored=True)
    metadata = StreamsMetadataState(topology.stores)
    replicas = {("counts", partition): replica}
    tasks, membership = (
        SimpleNamespace(replicas=replicas, doubts={}),
        SimpleNamespace(lease_until_boot_ms=now + 60_000),
    )
    return Admission(topology, metadata, "here:1", tasks, membership), replica


def batch_of(reads: Reads, keys: list[Any], parameters: ReadParameters) -> Batched:
    """The results of a batch of the store ``counts``."""
    spec = reads.batch_spec("counts", parameters)
    located = reads.locate(spec, keys, parameters)
    batched = Batched.of(located)
    deque(reads.batching(batched, spec, located, parameters), maxlen=0)
    return batched
