"""Every kind of read through the router, against a plain in-memory model, also after a worker was killed."""

import bisect
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite import batches as sqlite_batches
from tests.support.cluster import Cluster, running_cluster, unstamped

TOPOLOGY = """
application_id = "queries"

[[subtopology]]
name = "all"
partitions = 3

[[subtopology.store]]
name = "names"

[[subtopology.store]]
name = "numbers"
key = "int32"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "visits"
kind = "session"
gap_ms = 1000
retention_ms = 1000000000

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 1000000000

[[subtopology.store]]
name = "recent"
kind = "versioned"
history_retention_ms = 1500
"""


@dataclass
class Model:
    """What every store holds, as plain dictionaries."""

    names: dict[str, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    hours: dict[tuple[str, int], int] = field(default_factory=dict)
    visits: dict[tuple[str, int, int], int] = field(default_factory=dict)
    prices: dict[str, dict[int, int | None]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, Model]]:
    chance = random.Random(1)
    model = Model()
    with running_cluster(tmp_path_factory.mktemp("queries"), topology_text=TOPOLOGY) as cluster:
        words = ["", "a", "a\x00", "a\x00b", "ab", "b", "ba", "z", "é", "日", *(f"k{i:04d}" for i in range(3000))]
        model.names = {word: chance.randrange(1000) for word in words}
        model.numbers = {chance.randrange(-(2**31), 2**31): i for i in range(200)}
        for origin in ("jfk", "lga", "l\x00"):
            model.hours |= {(origin, start): start for start in range(-5000, 100_000, 1000)}
        for visitor in ("ann", "bob"):
            for start in range(0, 50_000, 7000):
                model.visits[visitor, start, start + 2500] = start
        cluster.put("names", {word.encode(): b"%d" % n for word, n in model.names.items()})
        cluster.put(
            "numbers", {key.to_bytes(4, "big", signed=True): b"%d" % n for key, n in model.numbers.items()}
        )
        cluster.put("hours", {key.encode() + time8(start): b"%d" % n for (key, start), n in model.hours.items()})
        cluster.put(
            "visits",
            {key.encode() + time8(end) + time8(start): b"%d" % n for (key, start, end), n in model.visits.items()},
        )
        put_versions(cluster, model)
        cluster.start_workers(3)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router, model


def time8(time_ms: int) -> bytes:
    return time_ms.to_bytes(8, "big", signed=True)


def put_versions(cluster: Cluster, model: Model) -> None:
    for spec, key in itertools.product(map(cluster.topology.stores.get, ("prices", "recent")), ("tea", "rum")):
        assert spec is not None
        model.prices[key] = {1000: 1, 2000: 2, 3000: None, 4000: 4}
        partition = cluster.partition(spec, key.encode())
        rows = [
            (key.encode(), None if price is None else b"%d" % price, valid_from)
            for valid_from, price in model.prices[key].items()
        ]
        path = cluster.changelog.path(TopicPartition(spec.topic, partition))
        sqlite_batches.append_batch(path, rows, writer="p", query_id="q", batch_id=hash(key), write_name=key)


def get(router: str, path: str, **parameters: Any) -> httpx.Response:
    return httpx.get(f"http://{router}{path}", params=parameters, timeout=30)


def pages(router: str, path: str, items: str, **parameters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        answer = get(router, path, **parameters)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["complete"] is True
        assert body["lag"]["record_lag"] == 0
        assert body["partitions"]
        found += body[items]
        if body["next"] is None:
            return found
        parameters["cursor"] = body["next"]


def check_entries(router: str, model: Model) -> None:
    chance = random.Random(2)
    ordered = sorted(model.names, key=str.encode)
    for _ in range(12):
        low, high = sorted(chance.sample(ordered, 2), key=str.encode)
        limit = chance.choice([1, 7, 500, 100_000])
        reverse = chance.random() < 0.5
        inside = ordered[bisect.bisect_left([o.encode() for o in ordered], low.encode()) :]
        inside = [word for word in inside if word.encode() < high.encode()]
        expected = [{"key": word, "value": model.names[word]} for word in (inside[::-1] if reverse else inside)]
        answer = get(
            router,
            "/v1/stores/names/entries",
            **{"from": low, "to": high, "limit": limit, "reverse": json.dumps(reverse)},
        )
        assert unstamped(answer.json()["entries"]) == expected[:limit]
        assert (answer.json()["next"] is None) == (len(expected) <= limit)


def test_entries_in_any_range_equal_the_model(served):
    _, router, model = served
    check_entries(router, model)


def test_every_entry_is_returned_exactly_once_over_pages(served):
    _, router, model = served
    found = pages(router, "/v1/stores/names/entries", "entries", limit=701)
    assert [(item["key"], item["value"]) for item in found] == sorted(
        model.names.items(), key=lambda item: item[0].encode()
    )


def test_prefixes_catch_what_begins_with_them_and_nothing_else(served):
    _, router, model = served
    for prefix in ("", "a", "k00", "é", "nothing"):
        found = pages(router, "/v1/stores/names/entries", "entries", prefix=prefix, limit=1000)
        expected = sorted((word for word in model.names if word.startswith(prefix)), key=str.encode)
        assert [item["key"] for item in found] == expected


def test_integer_keys_come_in_numerical_order(served):
    _, router, model = served
    found = pages(router, "/v1/stores/numbers/entries", "entries", **{"from": "-1000000000", "limit": 50})
    assert [item["key"] for item in found] == sorted(key for key in model.numbers if key >= -1_000_000_000)
    assert get(router, "/v1/stores/numbers/entries", prefix="1").status_code == 400


def test_windows_of_one_key_and_of_all(served):
    _, router, model = served
    found = pages(router, "/v1/stores/hours/keys/jfk/windows", "windows", **{"from": 0, "to": 50_000, "limit": 7})
    assert [item["start_ms"] for item in found] == list(range(0, 50_000, 1000))
    every = pages(router, "/v1/stores/hours/windows", "windows", **{"from": -2000, "to": 3000, "limit": 4})
    assert [(item["key"], item["start_ms"]) for item in every] == sorted(
        ((key, start) for key, start in model.hours if -2000 <= start < 3000), key=lambda k: (k[0].encode(), k[1])
    )


def test_sessions_that_overlap_a_time(served):
    _, router, model = served
    first, last = 8000, 21_500
    expected = sorted((key, start, end) for key, start, end in model.visits if end >= first and start < last)
    one = pages(
        router, "/v1/stores/visits/keys/ann/sessions", "sessions", **{"from": first, "to": last, "limit": 1}
    )
    assert [("ann", item["start_ms"], item["end_ms"]) for item in one] == [e for e in expected if e[0] == "ann"]
    every = pages(router, "/v1/stores/visits/sessions", "sessions", **{"from": first, "to": last})
    assert [(item["key"], item["start_ms"], item["end_ms"]) for item in every] == expected


def test_versions_history_and_as_of(served):
    _, router, model = served
    history = pages(router, "/v1/stores/prices/keys/tea/versions", "versions", limit=3)
    assert unstamped(history) == [{"valid_from_ms": t, "value": price} for t, price in model.prices["tea"].items()]
    path = "/v1/stores/prices/keys/tea"
    assert get(router, path).json()["value"] == 4
    assert get(router, path, as_of=2500).json()["value"] == 2
    assert get(router, path, as_of="1970-01-01T00:00:01Z").json()["value"] == 1
    assert get(router, path, as_of=3500).status_code == 404
    assert get(router, path, as_of=10).status_code == 404


def test_value_before_the_kept_history_is_expired(served):
    """The answer is 410 and not 404, since the key may have had a value."""
    _, router, _ = served
    path = "/v1/stores/recent/keys/tea"
    gone = get(router, path, as_of=1500)
    assert (gone.status_code, gone.json()["type"]) == (410, "urn:forebay:problem:history-expired")
    assert gone.json()["role"] == "active"
    assert "1500 ms" in gone.json()["detail"]
    # What was in force when history begins, at 2500, is known since it came.
    assert get(router, path, as_of=2000).json()["value"] == 2
    assert get(router, path, as_of=3000).status_code == 404
    assert get(router, path).json()["value"] == 4
    history = pages(router, f"{path}/versions", "versions", limit=2)
    assert unstamped(history) == [
        {"valid_from_ms": t, "value": price} for t, price in ((2000, 2), (3000, None), (4000, 4))
    ]
    assert pages(router, f"{path}/versions", "versions", limit=2, reverse="true") == history[::-1]
    batch = httpx.post(f"http://{router}/v1/stores/recent/batch-get?as_of=1999", json={"keys": ["tea", "none"]})
    assert [result["problem"]["status"] for result in batch.json()["results"]] == [410, 404]


def test_batch_has_an_answer_or_problem_for_each_key(served):
    _, router, model = served
    keys = ["a", "nobody", "k0001", 7, "é"]
    answer = httpx.post(f"http://{router}/v1/stores/names/batch-get", json={"keys": keys})
    assert answer.status_code == 200
    one, missing, two, bad, three = answer.json()["results"]
    assert [item["value"] for item in (one, two, three)] == [model.names[k] for k in ("a", "k0001", "é")]
    assert one["lag"]["record_lag"] == 0
    assert missing["problem"]["type"] == "urn:forebay:problem:unknown-key"
    assert missing["key"] == "nobody"
    assert bad["problem"]["type"] == "urn:forebay:problem:bad-key"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"keys": 1}', b'{"keys": [], "more": 1}', json.dumps({"keys": ["a"] * 501})]
)
def test_a_batch_that_is_not_one_is_a_problem(served, body):
    _, router, _ = served
    answer = httpx.post(f"http://{router}/v1/stores/names/batch-get", content=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "urn:forebay:problem:bad-request"


def test_a_key_of_the_other_kinds_is_a_conflict(served):
    _, router, _ = served
    for path in (
        "hours/keys/jfk",
        "names/keys/a/windows",
        "names/sessions",
        "names/keys/a/versions",
        "hours/entries",
    ):
        answer = get(router, f"/v1/stores/{path}")
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:forebay:problem:wrong-store-kind")


def test_scan_goes_on_after_a_worker_is_killed(served):
    """The worker dies between two pages."""
    cluster, router, model = served
    first = get(router, "/v1/stores/names/entries", limit=1000).json()
    cluster.kill(next(iter(cluster.workers)))
    rest = pages(router, "/v1/stores/names/entries", "entries", limit=1000, cursor=first["next"], timeout_ms=5000)
    keys = [item["key"] for item in first["entries"] + rest]
    assert keys == sorted(model.names, key=str.encode)
    check_entries(router, model)


def test_missing_partition_fails_a_list_unless_partial(tmp_path):
    """A list that may be partial names the missing partitions."""
    with running_cluster(
        tmp_path, topology_text=TOPOLOGY, worker_options=("--num-standby-replicas", "0")
    ) as cluster:
        cluster.put("names", {b"k%d" % i: b"1" for i in range(100)})
        cluster.start_workers(2, "--session-timeout-ms", "20000")
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        lost = next(iter(cluster.workers))
        gone = {p for p, hosts in cluster.roles(router, "names").items() if lost in hosts}
        cluster.kill(lost)
        refused = get(router, "/v1/stores/names/entries")
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:forebay:problem:no-replica")
        part = get(router, "/v1/stores/names/entries", allow_partial="true").json()
        assert part["complete"] is False
        assert part["missing"] == sorted(gone)
        spec = cluster.topology.stores["names"]
        assert {item["key"] for item in part["entries"]} == {
            f"k{i}" for i in range(100) if cluster.partition(spec, b"k%d" % i) not in gone
        }
