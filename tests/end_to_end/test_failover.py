"""Workers are killed, stopped and restarted under load: reads continue, and report honestly how far behind they
are."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until

pytestmark = pytest.mark.chaos

READS_PER_SECOND = 200
TIMEOUT_MS = 10_000
"""What a read allows, and would take if it waited for a worker that is lost: far from a hedge delay, so that a
busy machine is no failure."""


@pytest.fixture
def cluster(either_cluster: Cluster) -> Cluster:
    return either_cluster


@dataclass
class Load:
    """Reads one key at a steady rate and keeps every answer."""

    url: str
    answers: list[tuple[float, int, str]] = field(default_factory=list)
    """Duration in ms, status, and the role that answered, or what was said instead."""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Load":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        with httpx.Client(timeout=30) as client:
            while not self._stopping.is_set():
                begun = time.monotonic()
                try:
                    answer = client.get(self.url)
                    status = answer.status_code
                    role = answer.headers.get("forebay-role", "") if status == 200 else answer.text
                except httpx.TransportError:
                    status, role = 0, ""
                self.answers.append(((time.monotonic() - begun) * 1000, status, role))
                due = max(due + 1 / READS_PER_SECOND, begun)
                self._stopping.wait(max(0.0, due - time.monotonic()))

    def wait_for(self, more: int) -> None:
        target = len(self.answers) + more
        wait_until(lambda: len(self.answers) >= target, f"{more} more reads", 60)

    @property
    def slowest_ms(self) -> float:
        return max(duration for duration, _, _ in self.answers)

    @property
    def failed(self) -> list[tuple[float, int, str]]:
        return [answer for answer in self.answers if answer[1] != 200]


def served(cluster: Cluster, workers: int, *options: str) -> str:
    cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(50)})
    cluster.start_workers(workers, *options)
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=min(2, workers))
    return router


def test_active_killed_fails_no_read(cluster):
    """The standby answers until it is promoted."""
    router = served(cluster, 3, "--standby-rebuild-delay-ms", "2000")
    killed = cluster.active_for(router, "counts", "k1")
    with Load(f"http://{router}/v1/stores/counts/keys/k1?max_record_lag=1000&timeout_ms={TIMEOUT_MS}") as load:
        load.wait_for(50)
        cluster.kill(killed)
        wait_until(lambda: cluster.active_for(router, "counts", "k1") not in (None, killed), "a new active")
        load.wait_for(50)
        # After the delay the lost replicas are rebuilt on the remaining workers.
        cluster.wait_settled(router)
    assert load.failed == []
    assert {"active", "standby"} <= {role for _, _, role in load.answers}
    assert load.slowest_ms < TIMEOUT_MS / 2


def test_require_active_is_rejected_during_a_failover(cluster):
    """No standby answers in place of the active."""
    router = served(cluster, 2)
    killed = cluster.active_for(router, "counts", "k1")
    with Load(f"http://{router}/v1/stores/counts/keys/k1?require_active=true") as load:
        load.wait_for(20)
        cluster.kill(killed)
        wait_until(lambda: cluster.active_for(router, "counts", "k1") not in (None, killed), "a new active")
        load.wait_for(100)
    statuses = [status for _, status, _ in load.answers]
    assert set(statuses) <= {200, 412, 503}
    assert statuses[-50:] == [200] * 50
    assert {role for _, status, role in load.answers if status == 200} == {"active"}


def test_stopped_worker_costs_no_read(cluster):
    """It wakes as a standby and states its true lag."""
    router = served(cluster, 2)
    stopped = cluster.active_for(router, "counts", "k1")
    url = f"http://{router}/v1/stores/counts/keys/k1"
    with Load(f"{url}?timeout_ms={TIMEOUT_MS}") as load:
        load.wait_for(50)
        cluster.kill(stopped, signal.SIGSTOP)
        # Others are asked before the time-out: of a read that might have waited too, and for large answers.
        waiting = httpx.get(url, params={"wait_ms": 1_000, "timeout_ms": 1_000}, timeout=10)
        assert (waiting.status_code, waiting.headers["forebay-host"] != stopped) == (200, True)
        keys = {"keys": [f"k{i}" for i in range(50)]}
        results = httpx.post(f"http://{router}/v1/stores/counts/batch-get", json=keys).json()["results"]
        assert [result["value"] for result in results] == list(range(50))
        entries = httpx.get(f"http://{router}/v1/stores/counts/entries")
        assert len(entries.json()["entries"]) == 50
        wait_until(lambda: cluster.active_for(router, "counts", "k1") not in (None, stopped), "a new active")
        load.wait_for(200)
    assert load.failed == []
    assert load.slowest_ms < TIMEOUT_MS / 2
    cluster.put("counts", {b"k1": b'"newer"'})
    cluster.kill(stopped, signal.SIGCONT)
    first = httpx.get(f"http://{stopped}/v1/stores/counts/keys/k1", params={"max_time_lag_ms": 500}, timeout=10)
    # Its lease ran out while it was stopped, and it cannot prove a bound.
    assert first.headers["forebay-role"] == "standby"
    assert first.status_code == 412 or first.json()["value"] == "newer"
    wait_until(
        lambda: httpx.get(f"http://{stopped}/v1/stores/counts/keys/k1").json()["value"] == "newer", "catch-up"
    )


def test_rolling_restart_fails_no_read_and_restores_nothing(cluster):
    router = served(cluster, 3)
    with Load(f"http://{router}/v1/stores/counts/keys/k1") as load:
        for address in list(cluster.workers):
            cluster.kill(address, signal.SIGTERM)
            assert cluster.workers[address].returncode == 0, cluster.logs()
            cluster.start_worker(address)
            cluster.wait_settled(router)
        load.wait_for(20)
    assert load.failed == []
    for address in cluster.workers:
        applied = [
            line.split()[-1]
            for line in httpx.get(f"http://{address}/metrics").text.splitlines()
            if line.startswith("forebay_records_applied_total")
        ]
        assert {float(count) for count in applied} == {0.0}


def test_scaling_out_and_in_fails_no_read_and_keeps_every_key(cluster):
    router = served(cluster, 1, "--standby-rebuild-delay-ms", "0")
    first = next(iter(cluster.workers))
    with Load(f"http://{router}/v1/stores/counts/keys/k1") as load:
        added = [cluster.start_worker(None, "--standby-rebuild-delay-ms", "0", ready=False) for _ in range(2)]
        cluster.wait_settled(router, replicas=2)
        wait_until(lambda: released_some(router, first), "a release by the first worker")
        for address in added:
            cluster.kill(address, signal.SIGTERM)
            cluster.wait_settled(router, replicas=2 if address == added[0] else 1)
        load.wait_for(20)
    assert load.failed == []
    for i in range(50):
        assert httpx.get(f"http://{router}/v1/stores/counts/keys/k{i}").json()["value"] == i


def released_some(router: str, worker: str) -> bool:
    lags = httpx.get(f"http://{router}/v1/lags").json()["lags"]
    held = {(row["store"], row["partition"]) for row in lags if row["host"] == worker}
    return held < {(row["store"], row["partition"]) for row in lags}


def test_restarted_worker_serves_before_it_joins(tmp_path):
    """It answers from its state directory before it is a member of the group."""
    with running_cluster(tmp_path) as cluster:
        restarted_without_group(cluster)


def restarted_without_group(cluster: Cluster) -> None:
    router = served(cluster, 1)
    (address,) = cluster.workers
    cluster.kill(address)
    cluster.put("counts", {b"k1": b'"newer"'})
    # With the group's database unreadable it can't join.
    group = cluster.directory / "log" / "group.db"
    for path in group.parent.glob("group.db*"):
        path.unlink()
    group.mkdir()
    cluster.start_worker(address, ready=False)
    wait_until(lambda: answers(address, "newer"), "an answer from disk")
    answer = httpx.get(f"http://{address}/v1/stores/counts/keys/k1")
    assert answer.json()["role"] == "standby"
    assert httpx.get(f"http://{address}/readyz").status_code == 503
    wait_until(lambda: answers(router, "newer"), "an answer through the router")


def answers(address: str, value: str) -> bool:
    try:
        answer = httpx.get(f"http://{address}/v1/stores/counts/keys/k1")
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["value"] == value


def test_a_replaced_log_is_never_lag_zero_of_the_old_one(cluster):
    router = served(cluster, 1)
    cluster.changelog.reset(cluster.topology.stores["counts"])
    url = f"http://{router}/v1/stores/counts/keys/k1"
    wait_until(lambda: httpx.get(url).status_code == 503, "the emptied log, where a miss proves nothing")
    cluster.put("counts", {b"k1": b'"new log"'})
    wait_until(lambda: httpx.get(url).status_code == 200, "the new log's content")
    assert httpx.get(url).json()["value"] == "new log"


def test_router_serves_from_its_last_map(cluster):
    """A second router learns the same map, and the first seed may be gone."""
    router = served(cluster, 2)
    second = cluster.start_router()

    def metadata(address: str) -> object:
        return httpx.get(f"http://{address}/v1/metadata").json()

    # Warm-ups may end meanwhile, which makes a new generation.
    wait_until(lambda: metadata(second) == metadata(router), "the same map in both")
    first_seed = next(iter(cluster.workers))
    cluster.kill(first_seed)
    for i in range(50):
        assert httpx.get(f"http://{router}/v1/stores/counts/keys/k{i}").status_code == 200


def test_a_router_without_workers_lives_but_is_not_ready(cluster):
    router = cluster.start_router(ready=False)
    assert httpx.get(f"http://{router}/livez").status_code == 200
    assert httpx.get(f"http://{router}/readyz").status_code == 503
    answer = httpx.get(f"http://{router}/v1/stores/counts/keys/a")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:forebay:problem:not-ready"


def test_many_reads_at_a_hung_worker_are_answered(cluster):
    """There are more reads than the hedge budget lets through."""
    router = served(cluster, 2)
    stopped = cluster.active_for(router, "counts", "k1")
    # More than the budget of hedges lets through, and none of them a plain read of one key.
    paths = ["keys/k1?wait_ms=900&timeout_ms=15000", "entries?limit=5&timeout_ms=15000"] * 30
    urls = [f"http://{router}/v1/stores/counts/{path}" for path in paths]
    with ThreadPoolExecutor(len(urls)) as pool, httpx.Client(timeout=20) as client:
        list(pool.map(client.get, urls))
        cluster.kill(stopped, signal.SIGSTOP)
        answers = list(pool.map(client.get, urls))
    assert [answer.status_code for answer in answers] == [200] * len(urls)
    cluster.kill(stopped, signal.SIGCONT)
