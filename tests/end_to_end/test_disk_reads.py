"""Reads of keys that are on disk: other answers wait for none of them, and each comes in its turn."""

import re
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.end_to_end.test_fast_path import exchange, request
from tests.support.cluster import running_cluster, wait_until

KEYS = 20_000
SMALL_CACHE = ("--rocksdb-block-cache-bytes", "1048576")
TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 2

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000
"""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A worker that has read nothing yet of what it has on disk."""
    with running_cluster(tmp_path_factory.mktemp("disk"), topology_text=TOPOLOGY) as cluster:
        rows = {b"k%d" % n: b'"%d%b"' % (n, b"x" * 100) for n in range(KEYS)}
        cluster.put("counts", rows)
        cluster.put("prices", rows)
        cluster.put("hours", {key + struct.pack(">q", 5_000): value for key, value in rows.items()})
        # Less than the records take.
        (worker,) = cluster.start_workers(1, *SMALL_CACHE)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        cluster.kill(worker, signal.SIGTERM)
        cluster.start_worker(worker, *SMALL_CACHE)
        cluster.wait_settled(router, replicas=1)
        yield worker


def disk_reads(worker: str, store: str) -> float:
    found = re.search(
        rf'^forebay_disk_reads_total\{{store="{store}"\}} (\S+)$',
        httpx.get(f"http://{worker}/metrics").text,
        re.M,
    )
    return float(found[1]) if found else 0.0


def until_read_from_disk(worker: str, store: str, read: Callable[[], Any], at_least: int) -> None:
    """Read until the cache, which is judged once a second, was full, and memory did not know of enough keys."""

    def enough() -> bool:
        before = disk_reads(worker, store)
        read()
        # What was read is in memory now, unless it makes way for others.
        exchange(worker, b"".join(request(f"/v1/stores/counts/keys/k{n}") for n in range(0, KEYS, 20)), KEYS // 20)
        return disk_reads(worker, store) - before >= at_least

    wait_until(enough, "reads from disk, once the cache is full")
    assert 'forebay_held{what="requests"} 0.0' in httpx.get(f"http://{worker}/metrics").text


def test_answers_from_disk_and_memory_come_in_their_order(restarted):
    order = [n for at in range(1_000, KEYS, 1_000) for n in (at, 1_000, at + 7, KEYS + at)]

    def read() -> None:
        answers = exchange(restarted, b"".join(request(f"/v1/stores/counts/keys/k{n}") for n in order), len(order))
        for n, answer in zip(order, answers, strict=True):
            if n < KEYS:
                assert b'"value":"%dx' % n in answer
            else:
                assert answer.startswith(b"HTTP/1.1 404")
            assert b"record-lag: 0" in answer.lower()

    until_read_from_disk(restarted, "counts", read, 20)


@pytest.mark.parametrize("store", ["counts", "prices"])
def test_a_batch_reads_its_keys_from_disk(restarted, store):
    order = [n for at in range(1_000, KEYS, 1_000) for n in (at + 3, KEYS + at)]

    def read() -> None:
        answer = httpx.post(
            f"http://{restarted}/v1/stores/{store}/batch-get", json={"keys": [f"k{n}" for n in order]}
        ).json()
        values = [result.get("value") for result in answer["results"]]
        assert values == [f"{n}{'x' * 100}" if n < KEYS else None for n in order]
        assert all(result["lag"]["record_lag"] == 0 for result in answer["results"] if "value" in result)

    until_read_from_disk(restarted, store, read, 10)


@pytest.mark.parametrize("query", ["", "?wait_ms=1"], ids=["fast path", "route"])
def test_a_version_is_read_from_disk(restarted, query):
    order = range(500, KEYS, 1_000)

    def read() -> None:
        for n in order:
            answer = httpx.get(f"http://{restarted}/v1/stores/prices/keys/k{n}{query}").json()
            assert answer["value"] == f"{n}{'x' * 100}"

    until_read_from_disk(restarted, "prices", read, 10)


def test_windows_are_read_from_disk(restarted):
    order = range(700, KEYS, 1_000)

    def read() -> None:
        for n in order:
            answer = httpx.get(f"http://{restarted}/v1/stores/hours/keys/k{n}/windows").json()
            assert [window["value"] for window in answer["windows"]] == [f"{n}{'x' * 100}"]

    until_read_from_disk(restarted, "hours", read, 10)
