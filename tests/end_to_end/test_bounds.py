"""Two replicas of which one has applied less: for every kind of read, bounds are held by what a replica has.

One worker's files cannot grow any more, as at the end of its disk, so its applier is held back.
"""

import json
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.cluster import ONE_PARTITION, Cluster, running_cluster, wait_until

pytestmark = pytest.mark.chaos

BEHIND = 6
"""Offsets that the one has not applied: five rows, and a heartbeat."""
OLD, NEW = "old", "new"


@dataclass
class Lagging:
    """``ahead`` has all of the log, ``behind`` has the old value of the key ``k``."""

    cluster: Cluster
    router: str
    ahead: str
    behind: str

    def get(self, address: str, path: str = "keys/k", **parameters: object) -> httpx.Response:
        return httpx.get(f"http://{address}/v1/stores/counts/{path}", params=parameters, timeout=10)

    def batch(self, address: str, **parameters: object) -> dict[str, Any]:
        url = f"http://{address}/v1/stores/counts/batch-get"
        answer = httpx.post(url, params=parameters, json={"keys": ["k"]}, timeout=10)
        assert answer.status_code == 200
        [result] = answer.json()["results"]
        return dict(result)


@pytest.fixture(scope="module")
def lagging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lagging]:
    with running_cluster(tmp_path_factory.mktemp("lagging"), topology_text=ONE_PARTITION) as cluster:
        cluster.put("counts", {b"k": b'"old"', b"gone": b"1"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        roles = {role: host for host, role in cluster.roles(router, "counts")[0].items()}
        found = Lagging(cluster, router, roles["active"], roles["standby"])
        held_back = cluster.workers[found.behind].pid
        resource.prlimit(held_back, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        rows: dict[bytes, bytes | None] = {b"k": b'"new"', b"gone": None, b"a": b"1", b"b": b"1", b"c": b"1"}
        cluster.put("counts", rows)
        wait_until(lambda: lag_of(found, found.behind) == BEHIND, "the one's falling behind")
        wait_until(lambda: lag_of(found, found.ahead) == 0, "the other's applying all")
        yield found


def lag_of(lagging: Lagging, address: str) -> int | None:
    """As the router knows it."""
    rows = lagging.cluster.get(lagging.router, "/v1/lags")["lags"]
    return next((row["record_lag"] for row in rows if (row["store"], row["host"]) == ("counts", address)), None)


def test_a_replica_behind_answers_within_its_lag_alone(lagging):
    answer = lagging.get(lagging.behind, max_record_lag=BEHIND)
    assert (answer.status_code, answer.json()["value"]) == (200, OLD)
    assert (answer.json()["lag"]["record_lag"], answer.headers["forebay-record-lag"]) == (BEHIND, str(BEHIND))
    assert lagging.batch(lagging.behind, max_record_lag=BEHIND)["value"] == OLD
    listed = lagging.get(lagging.behind, "entries", max_record_lag=BEHIND).json()
    assert [(entry["key"], entry["value"]) for entry in listed["entries"]] == [("gone", 1), ("k", OLD)]
    assert listed["lag"]["record_lag"] == BEHIND
    for bound in (0, 3, BEHIND - 1):
        refused = lagging.get(lagging.behind, max_record_lag=bound)
        assert refused.status_code == 412
        assert refused.json()["type"] == "urn:forebay:problem:lag-exceeds-tolerance"
        assert refused.json()["lag"]["record_lag"] == BEHIND
        assert lagging.batch(lagging.behind, max_record_lag=bound)["problem"]["status"] == 412
        assert lagging.get(lagging.behind, "entries", max_record_lag=bound).status_code == 412
        assert lagging.get(lagging.behind, "keys/a", max_record_lag=bound).status_code == 412


def test_a_stricter_bound_is_never_answered_by_the_old_value(lagging):
    for bound in (0, 3):
        for parameters in ({"prefer": "any"}, {}):
            for _ in range(10):
                answer = lagging.get(lagging.router, max_record_lag=bound, **parameters)
                assert (answer.status_code, answer.json()["value"]) == (200, NEW)
        assert lagging.batch(lagging.router, max_record_lag=bound, prefer="any")["value"] == NEW
        listed = lagging.get(lagging.router, "entries", max_record_lag=bound, prefer="any").json()
        assert [entry["key"] for entry in listed["entries"]] == ["a", "b", "c", "k"]


def test_a_position_of_what_is_ahead_is_not_reached_behind(lagging):
    position = lagging.get(lagging.ahead).json()["position"]
    refused = lagging.get(lagging.behind, min_position=position)
    assert (refused.status_code, refused.json()["type"]) == (412, "urn:forebay:problem:position-not-reached")
    assert lagging.get(lagging.router, min_position=position, prefer="any").json()["value"] == NEW
    assert lagging.batch(lagging.behind, min_position=position)["problem"]["status"] == 412
    for _ in range(10):
        # Whichever is asked first.
        assert lagging.batch(lagging.router, min_position=position, prefer="any")["value"] == NEW
        listed = lagging.get(lagging.router, "entries", min_position=position, prefer="any").json()
        assert [entry["key"] for entry in listed["entries"]] == ["a", "b", "c", "k"]


def test_a_later_page_is_not_read_behind_the_one_before(lagging):
    """Which would leave out, or bring back, what changed in between."""
    for first in (lagging.ahead, lagging.router):
        page = lagging.get(first, "entries", limit=2).json()
        assert [entry["key"] for entry in page["entries"]] == ["a", "b"]
        refused = lagging.get(lagging.behind, "entries", limit=2, cursor=page["next"])
        assert (refused.status_code, refused.json()["type"]) == (412, "urn:forebay:problem:position-not-reached")
        rest = lagging.get(lagging.router, "entries", limit=2, cursor=page["next"], prefer="any").json()
        assert [entry["key"] for entry in rest["entries"]] == ["c", "k"]


def test_a_stream_does_not_go_back_to_a_replica_behind(lagging):
    """Before the one ahead is lost for good: it is stopped for a while."""
    url = f"http://{lagging.router}/v1/stores/counts/keys/k/changes"
    with httpx.stream("GET", url, params={"timeout_ms": 500}, timeout=30) as stream:
        lines = stream.iter_lines()
        events = [event_after(lines)]
        assert events[0] == ("value", NEW)
        lagging.cluster.kill(lagging.ahead, signal.SIGSTOP)
        try:
            while events[-1][0] != "problem":
                events.append(event_after(lines))
        finally:
            lagging.cluster.kill(lagging.ahead, signal.SIGCONT)
        # Lag events, until it is found that nobody is as far.
        assert {event for event in events if event[0] not in ("lag", "problem")} == {("value", NEW)}
    wait_until(lambda: lagging.get(lagging.router, max_record_lag=0).status_code == 200, "the one ahead")


def event_after(lines: Iterator[str]) -> tuple[str, object]:
    """The next event's name, and the value in it."""
    name = ""
    for line in lines:
        field, _, text = line.partition(": ")
        if field == "event":
            name = text
        elif field == "data":
            return name, json.loads(text).get("value")
    raise AssertionError("the stream ended")


def test_sole_survivor_answers_within_its_lag_only(lagging):
    """After those that need both."""
    lagging.cluster.kill(lagging.ahead)
    answer = lagging.get(lagging.router, max_record_lag=BEHIND)
    assert (answer.status_code, answer.json()["value"]) == (200, OLD)
    assert answer.json()["lag"]["record_lag"] == BEHIND
    for bound in (3, 0):
        refused = lagging.get(lagging.router, max_record_lag=bound)
        assert refused.status_code == 412, refused.text
        assert refused.json()["lag"]["record_lag"] == BEHIND
        hosts = {attempt["host"] for attempt in refused.json()["attempts"]}
        assert hosts == {lagging.ahead, lagging.behind}
        assert "retry-after" in refused.headers
        assert lagging.batch(lagging.router, max_record_lag=bound)["problem"]["status"] == 412
        assert lagging.get(lagging.router, "entries", max_record_lag=bound).status_code == 412
    # Without a bound it is as good as any.
    assert lagging.get(lagging.router).json()["value"] == OLD


def test_a_held_back_replica_catches_up(lagging):
    """Last: nothing is behind any more."""
    held_back = lagging.cluster.workers[lagging.behind].pid
    resource.prlimit(held_back, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wait_until(lambda: lagging.get(lagging.behind, max_record_lag=0).status_code == 200, "catching up")
    answer = lagging.get(lagging.behind)
    assert (answer.status_code, answer.json().get("value")) == (200, NEW), answer.text
