"""Which replicas a router asks, as its clients can choose and see."""

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from forebay.position import Position, encode_position, log_digest
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

READS = 60
"""So many that one of two hosts chosen alike is left out once in 2**59 runs."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("routing")) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        cluster.put("hours", {b"jfk" + (1000).to_bytes(8, "big"): b"1"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        # The fast path takes reads once all connections to a worker are open.
        hosts(router, "/counts/keys/k1?prefer=any")
        yield cluster, router


def hosts(router: str, path: str, **options: object) -> set[str]:
    """The hosts that answered this many reads of a path."""
    found = set()
    with httpx.Client(base_url=f"http://{router}/v1/stores", timeout=10) as client:
        for _ in range(READS):
            answer = client.request("POST" if "json" in options else "GET", path, **options)
            assert answer.status_code == 200, answer.text
            body = answer.json()
            [source] = body.get("results") or body.get("partitions") or [body]
            found.add(source["host"])
    return found


@pytest.mark.parametrize("bound", ["", "&max_record_lag=0", "&max_time_lag_ms=5000"])
def test_reads_that_prefer_any_replica_are_spread_over_all(served, bound):
    cluster, router = served
    everyone = set(cluster.workers)
    hot = f"/counts/keys/k1?prefer=any{bound}"
    assert hosts(router, hot) == everyone
    # A TE header is harmless, and enough to be left to the ordinary read.
    assert hosts(router, hot, headers={"te": "trailers"}) == everyone
    assert hosts(router, f"/counts/batch-get?prefer=any{bound}", json={"keys": ["k1"]}) == everyone
    assert hosts(router, f"/hours/keys/jfk/windows?prefer=any{bound}") == everyone


def test_prefer_any_stays_in_the_routers_rack_or_host(tmp_path):
    """Replicas elsewhere answer once the near one cannot."""
    with running_cluster(tmp_path) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
        # A worker that names no rack has its host's.
        near = cluster.start_worker(ready=False)
        far = cluster.start_worker(f"127.0.0.2:{free_port()}", "--rack", "b", ready=False)
        for address in (near, far):
            cluster.wait_ready(address)
        router = cluster.start_router("--rack", "127.0.0.1")
        cluster.wait_settled(router)
        keys = (f"k{i}" for i in range(50))
        key = next(key for key in keys if cluster.active_for(router, "counts", key) == far)
        spread = f"/counts/keys/{key}?prefer=any"
        assert hosts(router, spread) == {near}
        assert hosts(router, spread, headers={"te": "trailers"}) == {near}
        assert hosts(router, "/counts/batch-get?prefer=any", json={"keys": [key]}) == {near}
        assert hosts(router, f"/counts/keys/{key}") == {far}
        beside_far = cluster.start_router("--rack", "127.0.0.1", "--own-host", "127.0.0.2")
        wait_until(lambda: hosts(beside_far, spread) == {far}, "reads from the worker on the router's own host")
        cluster.kill(near)
        assert hosts(router, spread) == {far}


@pytest.mark.parametrize("headers", [{}, {"te": "trailers"}])
def test_require_active_beats_a_preference(served, headers):
    cluster, router = served
    active = cluster.active_for(router, "counts", "k1")
    assert hosts(router, "/counts/keys/k1?prefer=any&require_active=true", headers=headers) == {active}


def test_a_preference_for_neither_is_refused(served):
    _, router = served
    answer = httpx.get(f"http://{router}/v1/stores/counts/keys/k1?prefer=standby")
    assert answer.status_code == 400
    assert "prefer='standby' is neither 'active' nor 'any'" in answer.json()["detail"]


def batches_answered(worker: str) -> int:
    return answered(worker, "batch-get")


def answered(worker: str, what: str) -> int:
    lines = httpx.get(f"http://{worker}/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("forebay_reads_total") and f'{what}"' in line]
    return sum(int(float(line.split()[-1])) for line in counts)


def test_a_batch_asks_each_worker_once_whatever_the_partitions(served):
    cluster, router = served
    keys = {"keys": [f"k{i}" for i in range(50)]}
    partitions = {cluster.partition(cluster.topology.stores["counts"], key.encode()) for key in keys["keys"]}
    assert len(partitions) > len(cluster.workers)
    before = {worker: batches_answered(worker) for worker in cluster.workers}
    results = httpx.post(f"http://{router}/v1/stores/counts/batch-get", json=keys).json()["results"]
    assert [result["value"] for result in results] == list(range(50))
    assert {worker: batches_answered(worker) - before[worker] for worker in before} == dict.fromkeys(before, 1)


def test_unmet_batch_bound_reads_each_worker_twice_at_most(served):
    """Each key's problem lists the attempts."""
    cluster, router = served
    before = {worker: batches_answered(worker) for worker in cluster.workers}
    url = f"http://{router}/v1/stores/counts/batch-get?max_age_ms=0"
    results = httpx.post(url, json={"keys": [f"k{i}" for i in range(50)]}).json()["results"]
    for result in results:
        assert result["problem"]["type"] == "urn:forebay:problem:lag-exceeds-tolerance"
        assert {attempt["host"] for attempt in result["problem"]["attempts"]} == set(cluster.workers)
    # Once for its own partitions, once for those of the other.
    assert all(batches_answered(worker) - before[worker] <= 2 for worker in before)


def test_batch_keys_are_forwarded_without_escapes(served):
    """The request to a worker is no longer than the one that the router received."""
    _, router = served
    keys = [f"{i}" + "я" * 1_400 for i in range(500)]
    body = json.dumps({"keys": keys}, ensure_ascii=False).encode()
    answer = httpx.post(f"http://{router}/v1/stores/counts/batch-get?timeout_ms=20000", content=body, timeout=30)
    assert {result["problem"]["type"] for result in answer.json()["results"]} == {
        "urn:forebay:problem:unknown-key"
    }


def test_unanswered_batch_keys_name_their_partitions(served):
    cluster, router = served
    spec = cluster.topology.stores["counts"]
    keys = {"keys": [f"k{i}" for i in range(20)]}
    try:
        for worker in cluster.workers:
            cluster.kill(worker, signal.SIGSTOP)
        url = f"http://{router}/v1/stores/counts/batch-get?timeout_ms=300"
        problems = [result["problem"] for result in httpx.post(url, json=keys).json()["results"]]
    finally:
        for worker in cluster.workers:
            cluster.kill(worker, signal.SIGCONT)
    expected = [cluster.partition(spec, key.encode()) for key in keys["keys"]]
    assert [problem["partition"] for problem in problems] == expected
    for problem in problems:
        assert problem["status"] in (503, 504)
        assert {attempt["host"] for attempt in problem["attempts"]} <= set(cluster.workers)
        assert problem["attempts"]


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("keys/7", {}),
        # A TE header is harmless, and enough to be left to the ordinary read.
        ("keys/7", {"headers": {"te": "trailers"}}),
        ("batch-get", {"json": {"keys": [7, 8]}}),
        ("entries", {}),
        ("entries?allow_partial=true", {}),
    ],
    ids=["fast", "ordinary", "batch", "list", "partial-list"],
)
def test_refusal_gives_the_reason_that_all_replicas_give(served, path, options):
    """Here that nobody has written the store, which a client of the router could not know otherwise."""
    cluster, router = served
    url = f"http://{router}/v1/stores/numbers/{path}"
    answer = httpx.request("POST" if "json" in options else "GET", url, **options).json()
    problems = [result["problem"] for result in answer["results"]] if "results" in answer else [answer]
    for problem in problems:
        assert problem["type"] == "urn:forebay:problem:no-replica"
        assert problem["detail"].count("Nobody has written to this partition of 'numbers' yet") == 1
        assert {attempt["host"] for attempt in problem["attempts"]} == set(cluster.workers)


def test_answer_held_by_a_hung_worker_is_read_again(tmp_path):
    """What has left its bounds while another worker was waited for is read anew."""
    # Nobody takes over from it meanwhile.
    options = ("--num-standby-replicas", "0", "--session-timeout-ms", "60000")
    with running_cluster(tmp_path, worker_options=options) as cluster:
        keys = [f"k{i}" for i in range(20)]
        cluster.put("counts", {key.encode(): b"1" for key in keys})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        hung = cluster.active_for(router, "counts", "k0")
        well = [key for key in keys if cluster.active_for(router, "counts", key) != hung]
        cluster.workers[hung].send_signal(signal.SIGSTOP)
        try:
            url = f"http://{router}/v1/stores/counts"
            bound = "max_time_lag_ms=400&timeout_ms=3000"
            with ThreadPoolExecutor() as pool:
                batch = pool.submit(
                    httpx.post, f"{url}/batch-get?{bound}", json={"keys": ["k0", *well]}, timeout=10
                )
                entries = pool.submit(httpx.get, f"{url}/entries?{bound}&allow_partial=true", timeout=10)
                (other,) = set(cluster.workers) - {hung}
                wait_until(
                    lambda: answered(other, "batch-get") and answered(other, "entries"), "the others' parts"
                )
                cluster.put("counts", {key.encode(): b"2" for key in well})
                missing, *found = batch.result().json()["results"]
                listed = entries.result().json()
        finally:
            cluster.workers[hung].send_signal(signal.SIGCONT)
        assert missing["problem"]["status"] == 504
        assert {result["value"] for result in found} == {2}
        assert max(result["lag"]["time_lag_ms"] for result in found) <= 400
        assert {entry["value"] for entry in listed["entries"] if entry["key"] in well} == {2}
        assert listed["lag"]["time_lag_ms"] <= 400


def test_reads_find_partitions_moved_since_the_last_poll(tmp_path):
    options = ("--num-standby-replicas", "0", "--probing-rebalance-interval-ms", "500")
    with running_cluster(tmp_path, worker_options=options) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(20)})
        cluster.start_workers(1)
        looking = cluster.start_router()
        of_old_maps = [cluster.start_router("--worker-poll-interval-ms", "60000") for _ in range(3)]
        cluster.wait_settled(looking, replicas=1)
        cluster.start_workers(1)
        wait_until(
            lambda: {cluster.active_for(looking, "counts", f"k{i}") for i in range(20)} == set(cluster.workers),
            "that both workers are active",
        )
        cluster.wait_settled(looking, replicas=1)
        (first, *_) = cluster.workers
        moved = next(f"k{i}" for i in range(20) if cluster.active_for(looking, "counts", f"k{i}") != first)
        one, several, all_of_them = (f"http://{router}/v1/stores/counts" for router in of_old_maps)
        assert httpx.get(f"{one}/keys/{moved}").status_code == 200
        batch = httpx.post(f"{several}/batch-get", json={"keys": [f"k{i}" for i in range(20)]}).json()
        assert [result.get("value") for result in batch["results"]] == list(range(20))
        entries = httpx.get(f"{all_of_them}/entries")
        assert (entries.status_code, len(entries.json().get("entries", ()))) == (200, 20)


def test_read_at_a_hung_worker_is_answered_by_its_successor(tmp_path):
    """The read waits until another worker is promoted."""
    with running_cluster(tmp_path, worker_options=("--num-standby-replicas", "0")) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(20)})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        hung = cluster.active_for(router, "counts", "k1")
        cluster.workers[hung].send_signal(signal.SIGSTOP)
        try:
            answer = httpx.get(f"http://{router}/v1/stores/counts/keys/k1?timeout_ms=20000", timeout=30)
        finally:
            cluster.workers[hung].send_signal(signal.SIGCONT)
        assert (answer.status_code, answer.json().get("value")) == (200, 1)
        assert answer.json()["host"] != hung


ONE_STORE = """
application_id = "test"
[[subtopology]]
name = "a"
partitions = 1
[[subtopology.store]]
name = "latest"
"""


def test_a_read_that_may_wait_is_answered_by_whoever_need_not(tmp_path):
    with running_cluster(tmp_path, topology_text=ONE_STORE) as cluster:
        cluster.put("latest", {b"k": b"0"})
        slow = cluster.start_worker(None, "--apply-records-per-second", "1")
        cluster.wait_ready(slow)
        quick = cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router)
        for i in range(200):
            ends = cluster.put("latest", {b"k": b"%d" % i})
        log = log_digest(cluster.changelog.identity(cluster.topology.stores["latest"].topic))
        token = encode_position(Position(log, dict(ends)))
        store = f"http://{router}/v1/stores/latest"
        waits = {"min_position": token, "wait_ms": 60_000, "timeout_ms": 120_000}
        wait_until(
            lambda: httpx.get(f"http://{quick}/v1/stores/latest/keys/k", params=waits).status_code == 200, "it"
        )
        # Long before the other would have to wait no more.
        answer = httpx.get(f"{store}/keys/k", params=waits, timeout=15)
        batch = httpx.post(f"{store}/batch-get", params=waits, json={"keys": ["k"]}, timeout=15)
        entries = httpx.get(f"{store}/entries", params=waits, timeout=15)
        found = [answer.json(), *batch.json()["results"], *entries.json()["partitions"]]
        assert [each["host"] for each in found] == [quick] * 3


def test_a_refusal_is_not_requested_twice(cluster):
    cluster.put("counts", {b"k": b"0"})
    workers = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    # The fast path takes reads once all connections to a worker are open.
    hosts(router, "/counts/keys/k")
    requested = [refusals(worker) for worker in workers]
    answer = httpx.get(f"http://{router}/v1/stores/counts/keys/k?max_age_ms=0")
    assert answer.status_code == 412
    assert {attempt["host"] for attempt in answer.json()["attempts"]} == set(workers)
    assert [refusals(worker) - before for worker, before in zip(workers, requested, strict=True)] == [1, 1]


def refusals(worker: str) -> float:
    reported = httpx.get(f"http://{worker}/metrics").text
    return sum(map(float, re.findall(r'^forebay_reads_total\{.*status="412".*\} (\S+)', reported, re.M)))
