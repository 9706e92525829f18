"""The lines of a report that answer what users ask, each with its question."""

from __future__ import annotations

from typing import NamedTuple


class Headline(NamedTuple):
    """A question, and the row that answers it, by what was measured and against what."""

    question: str
    what: str
    against: str = ""


_KAFKA_STREAMS = "Kafka Streams + Undertow"
_PARQUET = "foreachBatch to Parquet"
HEADLINES = (
    Headline("Single reads from one core", "worker, one key, lag attached", f"{_KAFKA_STREAMS}, one HTTP thread"),
    Headline("… and a service over Redis", "worker, one key, lag attached", "FastAPI + redis-py + Redis"),
    Headline(
        "p99 of reads while 50,000 records/s are applied",
        "p99 at 1,000 reads/s, 50,000 records/s applied from Kafka",
        _KAFKA_STREAMS,
    ),
    Headline(
        "The longest of these",
        "longest at 1,000 reads/s, 50,000 records/s applied from Kafka",
        _KAFKA_STREAMS,
    ),
    Headline("Reads through a router", "router hop, 32 connections, random keys", "HAProxy, one thread"),
    Headline(
        "What a router adds to a read, p50",
        "latency that the router adds, one connection, p50",
        "HAProxy, one thread",
    ),
    Headline(
        "Keys in batches of 100, through a router",
        "batch-get of 100 keys through the router, 32 connections",
        "the same keys singly, 32 connections",
    ),
    Headline(
        "Entries of a list, through a router",
        "range scan of 100,000 entries through the router",
        "rocksdict in process, one store",
    ),
    Headline(
        "From Kafka's commit to an answer, p50",
        "a record committed to Kafka, until the router answers with it: p50",
    ),
    Headline("… and p99", "a record committed to Kafka, until the router answers with it: p99"),
    Headline(
        "A new worker's restore",
        "full restore of 4,000,000 small records from Kafka, 2 processes",
        "Kafka Streams, 2 threads",
    ),
    Headline(
        "A killed worker is back after",
        "killed (-9) and started again with 64 tasks in place: a key of each is answered after",
        "Kafka Streams, static member",
    ),
    Headline("Reads that fail when a worker is killed", "worker killed (-9) at 500 reads/s of its keys: failed"),
    Headline("The longest of those reads", "worker killed (-9) at 500 reads/s of its keys: longest"),
    Headline(
        "p99 beside 1,000 followers of a store that changes",
        "router, p99 at 1,000 reads/s, beside 1,000 followers of a store with 1,000 records/s",
        "no followers",
    ),
    Headline(
        "Reads of random keys of 8 GB within 1 GiB of memory",
        "worker, random keys of 8 GB in 1,024 MiB",
        "Kafka Streams + Undertow, 16 readers",
    ),
    Headline(
        "… and p99.9 beside 50,000 records/s",
        "p99.9 at 1,000 reads/s of 8 GB in 1,024 MiB, beside 50,000 records/s",
        "Kafka Streams + Undertow, 16 readers",
    ),
    Headline(
        "A new worker's copy of 8 GB from another", "restore of 20,000,000 records from a peer", "from Kafka"
    ),
    Headline(
        "A killed worker of 20 GB answers after",
        "worker of 20 GB in 64 stores, killed (-9) and started again: first answer",
        "rocksdict alone, the same stores opened and one key read",
    ),
    Headline(
        "Memory of a worker",
        "memory of a worker with 400 stores of 4 partitions, written to and read",
    ),
    Headline("A batch of 100 rows from Spark to Kafka", "sink to Kafka, unchecked, a batch of 100 rows", _PARQUET),
    Headline("… and to SQLite", "sink to SQLite, a batch of 100 rows", _PARQUET),
    Headline("Large batches from Spark to Kafka", "sink to Kafka, unchecked, batches of 2,000,000 rows", _PARQUET),
    Headline(
        "From Spark's commit to the log, by the tap",
        "tap, 1,000 changes a batch: in the log after the commit, p50",
    ),
)
