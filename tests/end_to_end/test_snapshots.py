"""Copies of stores that workers take from each other, in place of a replay of the log."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 1

[[subtopology.store]]
name = "counts"
"""
RECORDS = 60_000
"""More than a replica may be behind that is not restored in bulk."""
COPIED = "goes on from a copy of what"


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    kafka = None if request.param == "sqlite" else request.getfixturevalue("kafka_url")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, kafka=kafka) as cluster:
        yield cluster


def put_many(cluster: Cluster) -> None:
    cluster.put("counts", {b"k%06d" % n: b'{"n": %d}' % n for n in range(RECORDS)})
    cluster.put("counts", {b"k%06d" % n: None for n in range(0, RECORDS, 3)})


def read(address: str, key: str, headers: dict[str, str] | None = None, **parameters: Any) -> httpx.Response:
    return httpx.get(f"http://{address}/v1/stores/counts/keys/{key}", params=parameters, headers=headers)


def log_of(cluster: Cluster, address: str) -> str:
    number = list(cluster.workers).index(address)
    return (cluster.directory / f"state-{number}.log").read_text()


def wait_level(address: str, headers: dict[str, str] | None = None) -> None:
    wait_until(lambda: read(address, "k000001", headers, max_record_lag=0).status_code == 200, "a level copy", 60)


def test_a_new_worker_goes_on_from_anothers_store(cluster):
    put_many(cluster)
    first = cluster.start_worker()
    wait_level(first)
    second = cluster.start_worker()
    wait_level(second)
    assert f"{COPIED} {first} has" in log_of(cluster, second)
    assert "restored at" not in log_of(cluster, second)
    for key, status in (("k000000", 404), ("k000002", 200), ("nobody", 404)):
        assert read(second, key, max_record_lag=0).status_code == status
    # It follows the log from there on, and remains what it is when it starts again.
    cluster.put("counts", {b"new": b"1"})
    wait_until(lambda: read(second, "new").status_code == 200, "the next record")
    cluster.kill(second)
    cluster.start_worker(second)
    wait_until(lambda: read(second, "new", max_record_lag=0).status_code == 200, "its own state")
    assert log_of(cluster, second).count(COPIED) == 1
    assert not list(cluster.directory.glob("state-*/test/.snapshots/*"))
    assert not list(cluster.directory.glob("state-*/test/.restore/*"))


def test_a_giver_that_dies_costs_nothing_but_time(tmp_path):
    slowly = ("--snapshot-bytes-per-second", "200000")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=slowly) as cluster:
        put_many(cluster)
        first = cluster.start_worker()
        wait_level(first)
        second = cluster.start_worker(ready=False)
        wait_until(lambda: list(cluster.directory.glob("state-1/test/.restore/*-copy/*.sst")), "the copy's begin")
        cluster.kill(first)
        wait_level(second)
        assert f"no copy from {first}" in log_of(cluster, second)
        assert COPIED not in log_of(cluster, second)
        assert read(second, "k000000", max_record_lag=0).status_code == 404


def test_a_copy_of_what_the_log_has_lost_is_not_trusted(tmp_path):
    """The giver does not know yet. Nothing of it is answered."""
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        put_many(cluster)
        first = cluster.start_worker(None, "--snapshot-bytes-per-second", "100000")
        wait_level(first)
        second = cluster.start_worker(ready=False)
        wait_until(lambda: list(cluster.directory.glob("state-1/test/.restore/*-copy/*.sst")), "the copy's begin")
        cluster.kill(first, signal.SIGSTOP)
        cluster.changelog.reset(cluster.topology.stores["counts"])
        cluster.put("counts", {b"k000001": b'"after"'})
        cluster.workers[first].send_signal(signal.SIGCONT)
        seen = set()

        def shows_new() -> bool:
            seen.add(read(second, "k000001").json().get("value", {}).__repr__())
            return "'after'" in seen

        wait_until(shows_new, "the log as it is", 60)
        assert seen <= {"{}", "'after'"}


def test_copies_take_the_workers_own_token_and_no_clients(tmp_path):
    tokens, own = tmp_path / "tokens", tmp_path / "own"
    tokens.write_text("client 0123456789abcdef0123\n")
    own.write_text("fedcba9876543210fedcba98\n")
    for file in (tokens, own):
        file.chmod(0o600)
    client = {"authorization": "Bearer 0123456789abcdef0123"}
    options = ("--auth-tokens-file", str(tokens))
    with running_cluster(tmp_path, topology_text=TOPOLOGY, headers=client, worker_options=options) as cluster:
        put_many(cluster)
        first = cluster.start_worker(None, "--snapshot-token-file", str(own))
        wait_level(first, client)
        url = f"http://{first}/v1/snapshots?store=counts&partition=0"
        for headers in ({}, client, {"authorization": "Bearer x"}):
            refused = httpx.post(url, headers=headers)
            assert refused.status_code == 403
            assert "--snapshot-token-file" in refused.json()["detail"]
        assert read(first, "k000001", {"authorization": "Bearer fedcba9876543210fedcba98"}).status_code == 401
        # Who has none gets none.
        second = cluster.start_worker()
        wait_level(second, client)
        assert COPIED not in log_of(cluster, second)
        third = cluster.start_worker(None, "--snapshot-token-file", str(own), "--num-standby-replicas", "2")
        assert third


def test_a_copy_that_nobody_may_have_is_refused_in_words(cluster):
    first = cluster.start_worker()
    url = f"http://{first}/v1/snapshots"
    wanted = {"store": "counts", "partition": "0"}
    # Nothing proves yet in which log an empty store is.
    assert httpx.post(url, params=wanted).status_code == 503
    cluster.put("counts", {b"k": b"1"})
    wait_until(lambda: httpx.post(url, params=wanted).status_code == 200, "a copy")
    for other, status in (({"store": "x"}, 404), ({"partition": "7"}, 421), ({"partition": "x"}, 421)):
        assert httpx.post(url, params={**wanted, **other}).status_code == status
    taken = httpx.post(url, params=wanted).json()
    one = f"{url}/{taken['snapshot']}"
    name, size = max(taken["files"].items(), key=lambda file: file[1])
    assert len(httpx.get(f"{one}/{name}").content) > size
    assert httpx.get(f"{one}/{name}", params={"from": size}).content == b""
    assert httpx.get(f"{one}/{name}", params={"from": "x"}).status_code == 400
    assert httpx.get(f"{one}/..%2F..%2Fprocess.json").status_code == 404
    assert httpx.delete(one).status_code == 204
    assert httpx.get(f"{one}/{name}").status_code == 404
    while (more := httpx.post(url, params=wanted)).status_code == 200:
        pass
    assert (more.status_code, more.json()["type"]) == (429, "urn:forebay:problem:overloaded")
