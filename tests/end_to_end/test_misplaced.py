"""Keys that are in other partitions than the partitioner puts them in: no miss is believed."""

import signal

import httpx

from tests.support.cluster import Cluster, wait_until


def test_misses_are_refused_beside_misplaced_keys(cluster: Cluster):
    spec = cluster.topology.stores["counts"]
    wrong = (cluster.partition(spec, b"strayed") + 1) % spec.partitions
    there = next(f"k{i}" for i in range(100) if cluster.partition(spec, b"k%d" % i) == wrong)
    lacking = next(f"n{i}" for i in range(100) if cluster.partition(spec, b"n%d" % i) == wrong)
    cluster.put("counts", {there.encode(): b"1"})
    cluster.log.append(spec, {wrong: [(b"strayed", b"1", 1)]}, "counts", 7)
    worker = cluster.start_worker()
    router = cluster.start_router()

    def status(address: str, key: str) -> tuple[int, str]:
        answer = httpx.get(f"http://{address}/v1/stores/counts/keys/{key}")
        return answer.status_code, answer.json().get("type", "").removeprefix("urn:forebay:problem:")

    wait_until(lambda: status(worker, there)[0] == 200, "the records")
    for _ in ("now", "after a restart"):
        for address in (worker, router):
            assert status(address, there)[0] == 200
            assert status(address, lacking) == (503, "partitioner-mismatch")
            listed = httpx.get(f"http://{address}/v1/stores/counts/entries")
            assert listed.status_code == 503
        results = httpx.post(
            f"http://{worker}/v1/stores/counts/batch-get", json={"keys": [there, lacking]}
        ).json()["results"]
        assert [result.get("problem", {}).get("status") for result in results] == [None, 503]
        cluster.kill(worker, signal.SIGTERM)
        cluster.start_worker(worker)
        wait_until(lambda: status(router, there)[0] == 200, "the router's finding it again")
