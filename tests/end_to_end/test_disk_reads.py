"""Reads of keys that are on disk: other answers wait for none of them, and each comes in its turn."""

import re
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.end_to_end.test_fast_path import exchange, request
from tests.support.cluster import Cluster, running_cluster

KEYS = 20_000


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A worker that has read nothing yet of what it has on disk."""
    with running_cluster(tmp_path_factory.mktemp("disk")) as cluster:
        cluster.put("counts", {b"k%d" % n: b'"%d%b"' % (n, b"x" * 100) for n in range(KEYS)})
        (worker,) = cluster.start_workers(1)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        cluster.kill(worker, signal.SIGTERM)
        cluster.start_worker(worker)
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
    for _ in range(2):
        before = disk_reads(worker)
        answers = exchange(worker, b"".join(request(f"/v1/stores/counts/keys/k{n}") for n in order), len(order))
        for n, answer in zip(order, answers, strict=True):
            if n < KEYS:
                assert b'"value":"%dx' % n in answer
            else:
                assert answer.startswith(b"HTTP/1.1 404")
            assert b"Forebay-Record-Lag: 0" in answer or b"forebay-record-lag: 0" in answer
        read = disk_reads(worker) - before
    # The first time, the blocks of all keys were on disk; the second time they are in memory.
    assert before >= 20
    assert read == 0
    held = httpx.get(f"http://{worker}/metrics").text
    assert 'forebay_held{what="requests"} 0.0' in held
