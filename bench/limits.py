"""What stands in the way of marks that are missed, as profiles of the measured processes show it."""

from __future__ import annotations

from bench.figures import Row

_OF_A_READ = "of a read's 11 µs the kernel takes 5, RocksDB 1, and some thirty small functions the rest"
_TAP = "a change takes the tap 3.5 µs in Python, and writing it to the log is part of that"
_A_QUARTER = "sending takes a quarter of the router's time, and who receives has the same two cores"
_SPARKS_KAFKA_SINK = (
    "Spark's own Kafka sink takes as long for the same records, beside its broker on the same two cores"
)
_ROCKSDICT = "rocksdict in process, 16 threads"
_READERS = "Kafka Streams + Undertow, 16 readers"
_NO_HTTP = "with all in memory, as many keys are read at 0.5 × of it: the rest is HTTP and Python, on one core"
_LOCK = (
    "what memory lacks is begun on the event loop, read by a thread and finished there, with nine calls of futex "
    "a read, while the other's threads use both cores"
)
_NO_CORE = (
    "the worker's threads wait for a core as long as they run, and for Python's lock with them: reader, writer, "
    "broker and worker have the same two, of which a quarter is idle in a quiet second and nothing in a busy one"
)
_BARE = "rocksdict alone, the same stores opened and one key read"
_RETURN = "worker of 20 GB in 64 stores, killed (-9) and started again"
_COPIED = "reading, checking and writing 8 GB, on two cores for both; 5 s are the start and the group"
_LIMITS = {
    ("restore of 20,000,000 records from a peer", "from Kafka"): _COPIED,
    ("processor time of a restore of 20,000,000 records from a peer, both workers", "from Kafka"): _COPIED,
    ("worker, one key, lag attached, of a store with ttl_ms", "without"): (
        "3 µs of a read's 26 here: the value's timestamp is read, and compared with the clock and the session's"
    ),
    ("p99 of the giver of a copy at 1,000 reads/s", "idle"): (
        "giver, taker, broker and reader have the same two cores; snapshot_bytes_per_second sets a limit"
    ),
    (f"{_RETURN}: first answer", _BARE): "with 0.1 GB it takes as long: Python's imports and joining the group",
    (f"{_RETURN}: /readyz 200", _BARE): (
        "with 0.1 GB it takes as long: the group waits for the session of the killed member to end, 6 s after it"
    ),
    ("worker, random keys of 8 GB in 1,024 MiB", _ROCKSDICT): _NO_HTTP,
    ("worker, keys by Zipf's law of 8 GB in 1,024 MiB", _ROCKSDICT): _NO_HTTP,
    ("worker, random keys of 8 GB in 1,024 MiB", _READERS): _LOCK,
    ("worker, keys by Zipf's law of 8 GB in 1,024 MiB", _READERS): _LOCK,
    ("p99.9 at 1,000 reads/s of 8 GB in 1,024 MiB, beside 50,000 records/s", _READERS): _NO_CORE,
    (
        "p99 at 1,000 reads/s of 200 keys of 8 GB in 1,024 MiB, beside saturating others",
        "idle",
    ): "the others take all of the loop's core, so that a read waits for those that came before it",
    ("worker, one key, lag attached", "uvicorn, raw ASGI, constant answer"): (
        "nginx, which parses, answers and writes in C, reaches 2.9 × the same constant"
    ),
    ("worker, one key, lag attached", "FastAPI + redis-py + Redis"): (
        "nginx with a static file reaches 29 × that service"
    ),
    ("worker, one key, lag attached", "nginx, static file of the same size, one process"): _OF_A_READ,
    ("latency that the router adds, one connection, p50", "HAProxy, one thread"): (
        "two more turns of an event loop with cold caches: 33 µs where HAProxy takes 12, all on one core"
    ),
    ("router hop, 32 connections, random keys", "FastAPI + httpx, one shared client"): (
        "HAProxy itself reaches 80 × that service"
    ),
    ("batch-get of 100 keys through the router, 32 connections", "the same keys singly, 32 connections"): (
        "a key of a batch takes 3.1 µs of all processes. Single reads have become as much faster as batches"
    ),
    ("range scan of 100,000 entries through the router", "rocksdict in process, one store"): (
        "the worker takes 1.06 µs an entry, 0.33 of them in RocksDB"
    ),
    ("worker, random keys of 1,024 partitions, nothing written", "4 partitions"): (
        "a read takes 11 µs more: 2.4 in RocksDB, whose memory is cold, 2.5 as the first of its millisecond at "
        "its replica, the rest in caches that a thousand databases fill"
    ),
    ("worker, random keys of 64 partitions, 10,000 records/s applied from Kafka", "4 partitions"): (
        "the same records come in sixteen times as many fetches and commits: of the two cores that all share, the "
        "broker takes 0.62 where it took 0.21, the applier and Kafka's client 0.32 where they took 0.17"
    ),
    ("full restore of 2,000,000 records from SQLite, 1 process, its start included", ""): (
        "since each record's checksum is compared, reading one takes 1.4 µs where it took 0.8"
    ),
    ("full restore of 2,000,000 records from SQLite, 2 processes", "1 process"): (
        "both cores are taken, and the worker's ingesting and its reads have the same two"
    ),
    ("sink to SQLite, a batch of 100 rows", "foreachBatch to Parquet"): (
        "a shuffle to the tasks of the partitions, each with Python beside it: five tasks where Parquet takes two"
    ),
    ("sink to Kafka, unchecked, a batch of 100 rows", "foreachBatch to Parquet"): (
        "the transactions with heartbeats, before the batch and after it, take a third of it"
    ),
    ("sink to SQLite, batches of 2,000,000 rows", "the same rows appended from memory by two processes"): (
        "Spark's expressions, shuffle and sort take as long as the appending does, on the same two cores"
    ),
    ("sink to Kafka, unchecked, batches of 2,000,000 rows", "foreachBatch to Parquet"): _SPARKS_KAFKA_SINK,
    ("sink to Kafka, unchecked, processor time of a batch of 2,000,000 rows", "foreachBatch to Parquet"): (
        _SPARKS_KAFKA_SINK
    ),
    ("tap, 100,000 changes a batch: a batch is in the log", "read by Spark's own source of state"): _TAP,
    ("tap, 2,000,000 changes a batch: a batch is in the log", "read by Spark's own source of state"): _TAP,
    ("router, random keys, beside 1,000 followers of a store with 1,000 records/s", "no followers"): _A_QUARTER,
    ("router, random keys, beside 1,000 followers of a key with 1,000 records/s", "no followers"): _A_QUARTER,
}


def limit(row: Row) -> str:
    """What a profile shows to stand in the way of a row's mark, empty if none was made."""
    return _LIMITS.get((row.what, row.against), "")
