"""Keys that are in other partitions than the partitioner puts them in: no miss is believed."""

import signal

import httpx

from tests.support.cluster import TOPOLOGY, Cluster, running_cluster, wait_until


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


def test_no_lag_is_proven_beside_misplaced_keys(cluster: Cluster):
    """What one partition should not have, another lacks: of the store nothing is proven, on any worker."""
    spec = cluster.topology.stores["counts"]
    cluster.put("counts", {b"k%d" % n: b"1" for n in range(40)})
    workers = cluster.start_workers(2, "--num-standby-replicas", "0")
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)

    def read(address: str, key: str, **bounds: object) -> httpx.Response:
        return httpx.get(f"http://{address}/v1/stores/counts/keys/{key}", params=bounds)

    bounds = {"max_record_lag": 0, "max_time_lag_ms": 3000}
    assert {read(router, f"k{n}", **bounds).status_code for n in range(40)} == {200}
    # A producer with another partitioner writes keys again, all to one partition.
    keys = [f"k{n}" for n in range(40) if cluster.partition(spec, b"k%d" % n) != 3]
    cluster.log.append(spec, {3: [(key.encode(), b"2", 1) for key in keys]}, "counts", 7)

    def refusals(address: str, **bounds: object) -> set[tuple[int, str]]:
        answers = [read(address, key, **bounds) for key in keys]
        return {(answer.status_code, answer.json().get("type", "").rpartition(":")[2]) for answer in answers}

    refused = {(503, "partitioner-mismatch")}
    wait_until(lambda: refusals(router, **bounds) == refused, "the doubt")
    unknown = dict.fromkeys(("record_lag", "time_lag_ms", "age_ms"))
    answers = [read(router, key).json() for key in keys]
    assert [answer["lag"] for answer in answers] == [unknown] * len(keys)
    results = httpx.post(f"http://{router}/v1/stores/counts/batch-get", json={"keys": keys}, params=bounds).json()
    assert {result["problem"]["status"] for result in results["results"]} == {503}
    assert read(router, "missing").status_code == 503
    holder = next(host for host in workers if 3 in cluster.roles(host, "counts"))

    def kinds(address: str) -> list[str]:
        return [found["kind"] for found in cluster.get(address, "/v1/health")["findings"]]

    wait_until(lambda: all("partitioner-mismatch" in kinds(address) for address in (holder, router)), "findings")
    # Deleted where they do not belong, they are no longer there.
    cluster.log.append(spec, {3: [(key.encode(), None, 1) for key in keys]}, "counts", 8)
    wait_until(lambda: refusals(router, **bounds) == {(200, "")}, "the end of the doubt")


def test_misplaced_keys_may_be_accepted(tmp_path):
    topology = TOPOLOGY.replace('name = "counts"\n\n[[sub', 'name = "counts"\naccept_misplaced = true\n\n[[sub')
    with running_cluster(tmp_path, topology_text=topology) as cluster:
        spec = cluster.topology.stores["counts"]
        wrong = (cluster.partition(spec, b"strayed") + 1) % spec.partitions
        cluster.put("counts", {b"there": b"1"})
        cluster.log.append(spec, {wrong: [(b"strayed", b"1", 1)]}, "counts", 7)
        worker = cluster.start_worker()
        url = f"http://{worker}/v1/stores/counts/keys"
        wait_until(lambda: httpx.get(f"{url}/strayed").status_code == 503, "the doubt")
        answer = httpx.get(f"{url}/there", params={"max_record_lag": 0})
        assert (answer.status_code, answer.json()["lag"]["record_lag"]) == (200, 0)
