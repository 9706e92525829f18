"""Reads of keys that are on disk: other answers wait for none of them, and each comes in its turn."""

import re
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.end_to_end.test_fast_path import exchange, request
from tests.support.cluster import Cluster, running_cluster, wait_until

KEYS = 20_000
SMALL_CACHE = ("--rocksdb-block-cache-bytes", "1048576")


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A worker that has read nothing yet of what it has on disk."""
    with running_cluster(tmp_path_factory.mktemp("disk")) as cluster:
        cluster.put("counts", {b"k%d" % n: b'"%d%b"' % (n, b"x" * 100) for n in range(KEYS)})
        # Less than the records take.
        (worker,) = cluster.start_workers(1, *SMALL_CACHE)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        cluster.kill(worker, signal.SIGTERM)
        cluster.start_worker(worker, *SMALL_CACHE)
        cluster.wait_settled(router, replicas=1)
        yield cluster, worker


def disk_reads(worker: str) -> float:
    found = re.search(
        r'^forebay_disk_reads_total\{store="counts"\} (\S+)$', httpx.get(f"http://{worker}/metrics").text, re.M
    )
    return float(found[1]) if found else 0.0


def test_answers_from_disk_and_memory_come_in_their_order(restarted):
    _, worker = restarted
    order = [n for at in range(1_000, KEYS, 1_000) for n in (at, 1_000, at + 7, KEYS + at)]

    def read_from_disk() -> bool:
        before = disk_reads(worker)
        answers = exchange(worker, b"".join(request(f"/v1/stores/counts/keys/k{n}") for n in order), len(order))
        for n, answer in zip(order, answers, strict=True):
            if n < KEYS:
                assert b'"value":"%dx' % n in answer
            else:
                assert answer.startswith(b"HTTP/1.1 404")
            assert b"record-lag: 0" in answer.lower()
        exchange(worker, b"".join(request(f"/v1/stores/counts/keys/k{n}") for n in range(0, KEYS, 20)), KEYS // 20)
        return disk_reads(worker) - before >= 20

    wait_until(read_from_disk, "reads from disk, once the cache is full")
    assert 'forebay_held{what="requests"} 0.0' in httpx.get(f"http://{worker}/metrics").text
