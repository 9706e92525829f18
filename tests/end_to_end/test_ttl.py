"""Values that expire by the clock: what every form of read shows of them, and that they do not come back."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from forebay.record_orders import with_order
from tests.chaos.clocks import WallClock
from tests.end_to_end.test_changes import Follower
from tests.end_to_end.test_store_changes import StoreFollower
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.command_process import CommandProcess

HOUR_MS = 3_600_000
TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 3

[[subtopology.store]]
name = "counts"
ttl_ms = 3_600_000

[[subtopology.store]]
name = "numbers"
key = "int64"
ttl_ms = 3_600_000
"""
OLD, YOUNG = [f"old{n}" for n in range(10)], [f"young{n}" for n in range(20)]


class Clocks:
    """Of each worker its own wall clock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._by_log: dict[str, WallClock] = {}
        self._hours = 0.0

    def start(self, arguments: list[str], log: Path, environment: Mapping[str, str]) -> CommandProcess:
        if not log.name.startswith("state-"):
            return CommandProcess(arguments, log, environment)
        clock = self._by_log.get(log.name)
        if clock is None:
            clock = self._by_log[log.name] = WallClock(self._directory / f"{log.stem}-clock")
            clock.step(self._hours * 3_600)
        return CommandProcess(arguments, log, {**environment, **clock.environment()})

    def step(self, hours: float, *, worker: int | None = None) -> None:
        """Set the clock of one worker, or of all, later ones too, so far before the machine's."""
        if worker is None:
            self._hours = hours
        for name, clock in self._by_log.items():
            if worker is None or name == f"state-{worker}.log":
                clock.step(hours * 3_600)


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[tuple[Cluster, Clocks]]:
    clocks = Clocks(tmp_path)
    with running_cluster(tmp_path, topology_text=TOPOLOGY, start_process=clocks.start) as cluster:
        now_ms = int(time.time() * 1000)
        cluster.put("counts", {key.encode(): b"1" for key in OLD}, None, now_ms - HOUR_MS)
        cluster.put("counts", {key.encode(): b"1" for key in YOUNG}, None, now_ms - HOUR_MS // 2)
        cluster.put("numbers", {(7).to_bytes(8, "big", signed=True): b"1"}, None, now_ms - HOUR_MS // 2)
        yield cluster, clocks


def shown(address: str) -> list[Any]:
    """What each form of read shows of all keys; at least the record that each value has."""
    url = f"http://{address}/v1/stores/counts"
    keys = [key for key in OLD + YOUNG if httpx.get(f"{url}/keys/{key}").status_code == 200]
    results = httpx.post(f"{url}/batch-get", json={"keys": OLD + YOUNG}).json()["results"]
    listed = httpx.get(f"{url}/entries").json()["entries"]
    backward = httpx.get(f"{url}/entries", params={"reverse": "true"}).json()["entries"]
    return [
        sorted(keys),
        sorted(result["key"] for result in results if "value" in result),
        sorted(entry["key"] for entry in listed),
        sorted(entry["key"] for entry in backward),
    ]


def test_an_expired_value_is_shown_by_no_read_on_either_tier(clocked):
    cluster, clocks = clocked
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    for address in (worker, router):
        assert shown(address) == [sorted(YOUNG)] * 4
    # A rewrite prolongs it.
    cluster.put("counts", {b"young0": b"2"})
    wait_until(lambda: cluster.get(worker, "/v1/stores/counts/keys/young0")["value"] == 2, "the record")
    clocks.step(0.6)
    for address in (worker, router):
        assert shown(address) == [["young0"]] * 4
        assert httpx.get(f"http://{address}/v1/stores/numbers/keys/7").status_code == 404
    missed = cluster.get(worker, "/v1/stores/counts/keys/young1")
    assert missed["type"] == "urn:forebay:problem:unknown-key"
    assert missed["lag"]["record_lag"] == 0
    # A clock that is set back brings nothing back.
    clocks.step(0)
    assert shown(router) == [["young0"]] * 4
    # Nor does a worker that is built anew have what had expired before.
    clocks.step(0.6)
    second = cluster.start_worker()
    cluster.wait_settled(router)
    clocks.step(0, worker=1)
    assert shown(second) == [["young0"]] * 4


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_followers_learn_that_a_value_has_expired(clocked, tier):
    cluster, clocks = clocked
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    address = worker if tier == "worker" else router
    with StoreFollower(address) as page, Follower(address, "young1", "counts", lag_interval_ms=100) as key:
        page.wait_to_show(dict.fromkeys(YOUNG, 1))
        key.wait_for(lambda follower: follower.named("value"), "the value")
        clocks.step(0.6)
        page.wait_to_show({})
        key.wait_for(lambda follower: follower.named("absent"), "its end")
        assert len(key.named("value")) == 1
        assert not page.named("problem")
        # What is written from now on is shown as ever.
        cluster.put("counts", {b"young1": b"3"}, None, int(time.time() * 1000) + HOUR_MS)
        page.wait_to_show({"young1": 3})
        with StoreFollower(address, seen=page.last_id) as resumed:
            resumed.wait_to_show({"young1": 3})
        key.wait_for(lambda follower: len(follower.named("value")) == 2, "the new value")
        assert key.named("value")[-1]["value"] == 3


def test_a_session_keeps_the_expiry_that_it_has_seen(clocked):
    """Another worker's clock is behind, and would bring the value back."""
    cluster, clocks = clocked
    workers = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    clocks.step(0.6, worker=0)
    urls = [f"http://{worker}/v1/stores/counts" for worker in workers]
    gone = httpx.get(f"{urls[0]}/keys/young1")
    assert gone.status_code == 404
    position = {"min_position": gone.json()["position"]}
    assert httpx.get(f"{urls[1]}/keys/young1").status_code == 200
    assert httpx.get(f"{urls[1]}/keys/young1", params=position).status_code == 404
    body = {"keys": ["young1"]}
    (result,) = httpx.post(f"{urls[1]}/batch-get", json=body, params=position).json()["results"]
    assert "value" not in result


KINDS = """
application_id = "test"

[[subtopology]]
name = "s"
partitions = 2

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000000

[[subtopology.store]]
name = "latest"
latest_by = "n"
"""


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def kinds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    kafka = None if request.param == "sqlite" else request.getfixturevalue("kafka_url")
    with running_cluster(tmp_path, topology_text=KINDS, kafka=kafka) as cluster:
        yield cluster


def test_a_key_that_must_be_forgotten_is_erased_with_all_its_entries(kinds):
    starts = [start.to_bytes(8, "big") for start in (1_000, 2_000, 3_000)]
    for key in (b"ann", b"anna"):
        kinds.put("counts", {key: b"1"})
        kinds.put("hours", {key + start: b"1" for start in starts})
        kinds.put("latest", {with_order(key, order): b"1" for order in (1, 2)})
        for at_ms in (1_000, 2_000):
            kinds.put("prices", {key: b"1"}, None, at_ms)
    worker = kinds.start_worker()

    def shown() -> dict[str, list[Any]]:
        url = f"http://{worker}/v1/stores"
        found: dict[str, list[Any]] = {}
        for key in ("ann", "anna"):
            reads = [f"{store}/keys/{key}" for store in ("counts", "latest", "prices")]
            reads += [f"prices/keys/{key}?as_of={at_ms}" for at_ms in (1_500, 2_500)]
            found[key] = [httpx.get(f"{url}/{read}").status_code for read in reads]
            found[key].append(len(httpx.get(f"{url}/hours/keys/{key}/windows").json()["windows"]))
        return found

    kept = [200, 200, 200, 200, 200, 3]
    wait_until(lambda: shown() == {"ann": kept, "anna": kept}, "the records")
    entries = {"counts": 1, "hours": 3, "prices": 2, "latest": 2}
    for store, count in entries.items():
        done = erase(kinds, store, "ann")
        assert done["erased_entries"] == count
        assert list(done["next_offsets"]) == [str(kinds.partition(kinds.topology.stores["counts"], b"ann"))]
    wait_until(lambda: shown() == {"ann": [404] * 5 + [0], "anna": kept}, "the erasure")
    assert erase(kinds, "counts", "ann") == erase(kinds, "counts", "nobody")
    # The store's own writer goes on.
    kinds.put("counts", {b"ann": b"2"})
    wait_until(lambda: kinds.get(worker, "/v1/stores/counts/keys/ann").get("value") == 2, "a new value")


def erase(cluster: Cluster, store: str, key: str) -> Any:
    """What the command says."""
    where = ["--topology", str(cluster.topology_path), "--changelog", cluster.changelog.url]
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "changelog", "erase", *where, store, key, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
