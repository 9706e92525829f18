"""A client's view of one quiet cluster: two workers and a router."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from forebay.lag import Lag, worst_lag
from forebay.position import Position, decode_position, encode_position
from tests.support.cluster import Cluster, running_cluster, unstamped, wait_until

NASTY_KEYS = [
    "/",
    "a/b",
    "%2F",
    "%25",
    "%",
    "a+b",
    "a b",
    "windows",
    "é",
    "日本",
    "?",
    "#",
    "a%FFb",
    "x" * 1024,
    "'\"\\",
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    with running_cluster(tmp_path_factory.mktemp("reads")) as cluster:
        cluster.put("counts", {b"a": b'{"n":1}', b"gone": b"1", **{key.encode(): b'"here"' for key in NASTY_KEYS}})
        cluster.put("counts", {b"gone": None})
        cluster.put("hours", {b"jfk" + (1000 * i).to_bytes(8, "big"): b"%d" % i for i in range(300)})
        cluster.put("numbers", {(-7).to_bytes(8, "big", signed=True): b'"minus seven"'})
        cluster.put("pairs", {b'["a",1]': b'"pair"'})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        yield cluster, router


def get(address: str, path: str, **parameters: Any) -> httpx.Response:
    return httpx.get(f"http://{address}{path}", params=parameters or None)


def test_hit_has_value_role_host_position_and_lag(served):
    """Body and headers state the same."""
    cluster, router = served
    # On a busy machine a hedge may be answered by the standby, unless the active is asked for.
    answer = get(router, "/v1/stores/counts/keys/a", require_active="true")
    body = answer.json()
    assert answer.status_code == 200
    assert (body["store"], body["key"], body["value"]) == ("counts", "a", {"n": 1})
    assert body["role"] == "active"
    assert body["host"] in cluster.workers
    assert body["lag"]["record_lag"] == 0
    assert 0 <= body["lag"]["time_lag_ms"] < 5000
    assert body["lag"]["age_ms"] >= 0
    assert answer.headers["forebay-record-lag"] == "0"
    assert answer.headers["forebay-time-lag-ms"] == str(body["lag"]["time_lag_ms"])
    assert answer.headers["forebay-age-ms"] == str(body["lag"]["age_ms"])
    assert answer.headers["forebay-position"] == body["position"]
    assert answer.headers["forebay-role"] == "active"
    assert answer.headers["forebay-host"] == body["host"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("key", ["never", "gone"])
def test_a_miss_is_a_404_with_the_same_members_but_value(served, key):
    _, router = served
    answer = get(router, f"/v1/stores/counts/keys/{key}")
    body = answer.json()
    assert answer.status_code == 404
    assert body["type"] == "urn:forebay:problem:unknown-key"
    assert {"store", "key", "partition", "position", "role", "host", "lag"} <= body.keys()
    assert "value" not in body
    assert answer.headers["forebay-role"] == body["role"]


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("counts/keys/it's%20%22so%22%C3%BC", 'The store \'counts\' has no key "it\'s \\"so\\"ü".'),
        ("pairs/keys/%5Bnull,true,%22a%22%5D", "The store 'pairs' has no key [null,true,\"a\"]."),
        ("numbers/keys/-9", "The store 'numbers' has no key -9."),
        ("numbers/keys/seven", 'The key "seven" is not a decimal integer.'),
    ],
)
def test_texts_show_keys_as_answers_have_them(served, path, detail):
    _, router = served
    assert get(router, f"/v1/stores/{path}").json()["detail"] == detail
    batch = httpx.post(f"http://{router}/v1/stores/numbers/batch-get", json={"keys": [[None, True]]}).json()
    assert "The key [null, true] is not an integer" in batch["results"][0]["problem"]["detail"]


@pytest.mark.parametrize("key", NASTY_KEYS)
def test_any_key_can_be_read_percent_encoded(served, key):
    _, router = served
    answer = get(router, f"/v1/stores/counts/keys/{quote(key, safe='')}")
    assert answer.status_code == 200
    assert answer.json()["key"] == key


def test_a_plus_is_a_plus_and_not_a_space(served):
    _, router = served
    assert get(router, "/v1/stores/counts/keys/a+b").json()["key"] == "a+b"


def test_integer_and_json_keys(served):
    _, router = served
    assert get(router, "/v1/stores/numbers/keys/-7").json()["value"] == "minus seven"
    spaced = quote('["a", 1]', safe="")
    assert get(router, f"/v1/stores/pairs/keys/{spaced}").json()["key"] == ["a", 1]


def test_windows_of_a_key_with_bounds_reverse_and_pages(served):
    _, router = served
    path = "/v1/stores/hours/keys/jfk/windows"
    first = get(router, path, limit=2).json()
    # Stream time is 300 s; a retention of 100 s hides the windows that ended before 200 s.
    assert [window["start_ms"] for window in first["windows"]] == [200_000, 201_000]
    assert unstamped(first["windows"])[0] == {"start_ms": 200_000, "end_ms": 201_000, "value": 200}
    assert first["complete"] is True
    second = get(router, path, limit=2, cursor=first["next"]).json()
    assert [window["start_ms"] for window in second["windows"]] == [202_000, 203_000]
    bounded = get(router, path, **{"from": 250_000, "to": "1970-01-01T00:04:12Z"}).json()
    assert [window["start_ms"] for window in bounded["windows"]] == [250_000, 251_000]
    assert bounded["next"] is None
    newest = get(router, path, reverse="true", limit=2).json()
    assert [window["start_ms"] for window in newest["windows"]] == [299_000, 298_000]
    older = get(router, path, reverse="true", limit=2, cursor=newest["next"]).json()
    assert [window["start_ms"] for window in older["windows"]] == [297_000, 296_000]


def test_a_cursor_of_another_query_is_refused(served):
    _, router = served
    cursor = get(router, "/v1/stores/hours/keys/jfk/windows", limit=2).json()["next"]
    other = get(router, "/v1/stores/hours/keys/jfk/windows", limit=2, cursor=cursor, reverse="true")
    assert other.status_code == 400
    assert "cursor" in other.json()["detail"]


@pytest.mark.parametrize(
    ("path", "status", "name"),
    [
        ("/v1/stores/nope/keys/a", 404, "unknown-store"),
        ("/v1/stores/counts/keys/%FF", 400, "bad-key"),
        ("/v1/stores/numbers/keys/seven", 400, "bad-key"),
        ("/v1/stores/counts/keys/a?max_record_lag=-1", 400, "bad-parameter"),
        ("/v1/stores/counts/keys/a?max_time_lag_ms=soon", 400, "bad-parameter"),
        ("/v1/stores/counts/keys/a?max_lag=0", 400, "bad-parameter"),
        ("/v1/stores/counts/keys/a?min_position=xyz", 400, "bad-parameter"),
        ("/v1/stores/hours/keys/jfk/windows?from=2000&to=1999", 400, "bad-parameter"),
        ("/v1/stores/hours/windows?from=2013-01-02T00:00:00Z&to=2013-01-01T00:00:00Z", 400, "bad-parameter"),
        ("/v1/stores/counts/entries?from=b&to=a", 400, "bad-parameter"),
        ("/v1/stores/numbers/entries?from=10&to=9", 400, "bad-parameter"),
        ("/v1/stores/hours/keys/jfk/windows?from=1795618060", 400, "bad-parameter"),
        ("/v1/stores/hours/keys/jfk", 409, "wrong-store-kind"),
        ("/v1/stores/counts/keys/a/windows", 409, "wrong-store-kind"),
        ("/v1/stores/nope", 404, "unknown-store"),
        ("/v1/metadata/stores/nope", 404, "unknown-store"),
        ("/nothing/here", 404, "unknown-path"),
    ],
)
def test_bad_requests_are_problems_on_both_tiers(served, path, status, name):
    cluster, router = served
    key_host = cluster.active_for(router, "counts", "a")
    for address in (router, key_host):
        answer = httpx.get(f"http://{address}{path}")
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        body = answer.json()
        assert body["type"] == f"urn:forebay:problem:{name}"
        assert body["status"] == status
        assert body["detail"]


def test_another_method_is_a_405_problem(served):
    _, router = served
    answer = httpx.post(f"http://{router}/v1/stores/counts/keys/a")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json()["type"] == "urn:forebay:problem:method-not-allowed"


@pytest.mark.parametrize("path", ["/v1/stores/counts/keys/a", "/v1/stores/counts/entries"])
def test_head_has_what_get_has_but_the_body(served, path):
    cluster, router = served
    for address in (router, cluster.active_for(router, "counts", "a")):
        head, whole = (httpx.request(method, f"http://{address}{path}") for method in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (200, b"")
        assert {name for name in head.headers if name.startswith("forebay-")} == {
            name for name in whole.headers if name.startswith("forebay-")
        }


def test_client_lost_within_a_body_is_no_error(served):
    cluster, router = served
    for address in (router, next(iter(cluster.workers))):
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /v1/stores/counts/batch-get HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
    for address in (router, next(iter(cluster.workers))):
        assert get(address, "/livez").status_code == 200
    assert "Traceback" not in cluster.logs()


def test_unmet_tolerance_is_rejected_with_the_lag(served):
    """A tolerance that holds is answered."""
    _, router = served
    assert get(router, "/v1/stores/counts/keys/a", max_record_lag=0, max_time_lag_ms=4000).status_code == 200
    refused = get(router, "/v1/stores/counts/keys/a", max_age_ms=0)
    assert refused.status_code == 412
    body = refused.json()
    assert body["type"] == "urn:forebay:problem:lag-exceeds-tolerance"
    assert body["lag"]["age_ms"] > 0
    assert len(body["attempts"]) == 2
    assert refused.headers["retry-after"]


def test_a_position_of_another_log_is_a_conflict(served):
    _, router = served
    position = get(router, "/v1/stores/pairs/keys/%5B%22a%22%2C1%5D").json()["position"]
    answer = get(router, "/v1/stores/counts/keys/a", min_position=position)
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:forebay:problem:position-of-another-log"


def test_batch_waits_for_its_min_position(cluster):
    cluster.put("counts", {b"a": b"1"})
    (worker,) = cluster.start_workers(1)
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    log, offsets, *_ = decode_position(get(worker, "/v1/stores/counts/keys/a").json()["position"])
    # What is written next ends two further, its heartbeat included.
    token = encode_position(Position(log, {partition: offset + 2 for partition, offset in offsets.items()}))
    for address in (worker, router):
        url = f"http://{address}/v1/stores/counts/batch-get?min_position={token}"
        [refused] = httpx.post(url, json={"keys": ["a"]}).json()["results"]
        assert refused["problem"]["type"] == "urn:forebay:problem:position-not-reached"
    with ThreadPoolExecutor(2) as pool:
        reads = [
            pool.submit(
                httpx.post,
                f"http://{address}/v1/stores/counts/batch-get?min_position={token}&wait_ms=20000&timeout_ms=20000",
                json={"keys": ["a", 7]},
                timeout=30,
            )
            for address in (worker, router)
        ]
        cluster.put("counts", {b"a": b"2"})
        for read in reads:
            waited, bad = read.result().json()["results"]
            assert waited["value"] == 2
            assert bad["problem"]["type"] == "urn:forebay:problem:bad-key"


def test_a_read_may_wait_for_longer_than_others_take(cluster):
    cluster.put("counts", {b"a": b"1"})
    # A router's own time is short, too, but its first polls must succeed.
    worker = cluster.start_worker(None, "--request-timeout-ms", "1")
    router = cluster.start_router("--request-timeout-ms", "400")
    cluster.wait_settled(router, replicas=1)
    log, offsets, *_ = decode_position(get(worker, "/v1/stores/counts/keys/a").json()["position"])
    token = encode_position(Position(log, {partition: offset + 2 for partition, offset in offsets.items()}))
    with ThreadPoolExecutor(2) as pool:
        path, begun = "/v1/stores/counts/keys/a", time.monotonic()
        reads = [pool.submit(get, a, path, min_position=token, wait_ms=20_000) for a in (worker, router)]
        wait_until(lambda: time.monotonic() > begun + 0.5 or any(read.done() for read in reads), "the usual time")
        assert not any(read.done() for read in reads)
        cluster.put("counts", {b"a": b"2"})
        assert [read.result().json()["value"] for read in reads] == [2, 2]


def test_a_workers_partition_that_is_elsewhere_is_misdirected(served, tmp_path):
    with running_cluster(tmp_path, worker_options=("--num-standby-replicas", "0")) as cluster:
        cluster.put("counts", {b"a": b"1"})
        one, other = cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        active = cluster.active_for(router, "counts", "a")
        wrong = other if active == one else one
        answer = get(wrong, "/v1/stores/counts/keys/a")
        assert answer.status_code == 421
        assert answer.json()["active_host"] == active
        assert get(router, "/v1/stores/counts/keys/a").json()["value"] == 1


def test_a_worker_seeks_a_key_in_no_other_partition(served):
    cluster, router = served
    host = cluster.active_for(router, "counts", "a")
    partition = get(router, "/v1/stores/counts/keys/a").json()["partition"]
    assert get(host, "/v1/stores/counts/keys/a", partition=partition).status_code == 200
    wrong = get(host, "/v1/stores/counts/keys/a", partition=(partition + 1) % 4)
    assert (wrong.status_code, wrong.json()["type"]) == (400, "urn:forebay:problem:bad-parameter")


def test_require_active_is_answered_by_the_active_only(served):
    cluster, router = served
    assert get(router, "/v1/stores/counts/keys/a", require_active="true").json()["role"] == "active"
    active = cluster.active_for(router, "counts", "a")
    standby = next(host for host in cluster.workers if host != active)
    refused = get(standby, "/v1/stores/counts/keys/a", require_active="true")
    assert refused.status_code == 412
    assert refused.json()["type"] == "urn:forebay:problem:not-active"


def test_documents(served):
    cluster, router = served
    worker = next(iter(cluster.workers))
    for address in (router, worker):
        stores = get(address, "/v1/stores").json()
        assert stores["application_id"] == "test"
        assert [store["name"] for store in stores["stores"]] == ["counts", "hours", "numbers", "pairs"]
        assert get(address, "/v1/stores/hours").json()["window_size_ms"] == 1000
        metadata = get(address, "/v1/metadata").json()
        assert {host["host"] for host in metadata["hosts"]} == set(cluster.workers)
        held = [tuple(tp) for host in metadata["hosts"] for tp in host["active_topic_partitions"]]
        assert len(held) == len(set(held)) == 4 + 3 * 2
        by_store = get(address, "/v1/metadata/stores/counts").json()
        assert {host["host"] for host in by_store["active"]} <= set(cluster.workers)
        by_key = get(address, "/v1/metadata/stores/counts/keys/a").json()
        assert by_key["active_host"] not in by_key["standby_hosts"]
        assert 0 <= by_key["partition"] < 4
        row = get(address, "/v1/lags").json()["lags"][0]
        assert set(Lag._fields) | {"store", "partition", "offset", "end_offset", "role", "host"} <= row.keys()
    assert get(worker, "/v1/status").json()["tier"] == "worker"
    assert get(router, "/v1/status").json()["tier"] == "router"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/openapi.json", "/docs"])
def test_ops_paths_answer_get_and_head(served, path):
    """Other methods are refused as everywhere, with those that there are."""
    cluster, router = served
    for address in (router, next(iter(cluster.workers))):
        for method in ("GET", "HEAD"):
            assert httpx.request(method, f"http://{address}{path}").status_code == 200
        refused = httpx.options(f"http://{address}{path}")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_metrics_count_what_was_read_and_how_far_behind(served):
    cluster, router = served
    before = samples(router)
    for headers in ({}, {"te": "trailers"}):
        # Enough for the fast path to begin, and headers that keep a read off it.
        for _ in range(10):
            key = httpx.get(f"http://{router}/v1/stores/counts/keys/a?require_active=true", headers=headers)
            assert key.status_code == 200
    assert get(router, "/v1/stores/hours/keys/jfk/windows").status_code == 200
    assert get(router, "/v1/stores/counts/keys/a", max_age_ms=0).status_code == 412
    after = samples(router)

    def more(name: str) -> float:
        return after[name] - before.get(name, 0)

    key_reads = 'forebay_router_reads_total{{role="{}",route="/v1/stores/{{store}}/keys/{{key}}",status="{}"}}'
    assert more(key_reads.format("active", 200)) == 20
    # On the fast path and off it, what was refused too.
    took = 'forebay_router_answer_seconds_count{{route="/v1/stores/{{store}}/keys/{{key}}{}",store="{}"}}'
    assert more(took.format("", "counts")) == 21
    assert more(took.format("/windows", "hours")) == 1
    refusals = {key_reads.format(role, 412) for role in ("active", "standby")} & after.keys()
    assert sum(map(more, refusals)) == 1
    # A refusal serves nothing.
    assert more('forebay_router_served_record_lag_bucket{le="0",store="counts"}') == 20
    assert more('forebay_router_served_time_lag_seconds_count{store="counts"}') == 20
    assert more('forebay_router_served_record_lag_count{store="hours"}') == 1
    assert more('forebay_router_served_age_seconds_count{store="counts"}') == 20
    assert more('forebay_router_served_age_seconds_bucket{le="3600",store="counts"}') == 20
    for worker in cluster.workers:
        assert after[f'forebay_router_worker_in_flight{{host="{worker}"}}'] == 0
    worker = next(iter(cluster.workers))
    text = get(worker, "/metrics").text
    assert 'forebay_record_lag{partition="0",store="counts"} 0.0' in text
    assert "forebay_records_applied_total" in text


def test_results_are_counted_by_store_and_batch_key(served):
    _, router = served
    before = samples(router)
    assert get(router, "/v1/stores/counts/keys/a").status_code == 200
    assert get(router, "/v1/stores/counts/keys/none").status_code == 404
    assert get(router, "/v1/stores/counts/keys/a", max_age_ms=0).status_code == 412
    assert get(router, "/v1/stores/counts/keys/a", max_age_ms="x").status_code == 400
    assert get(router, "/v1/stores/hours/windows").status_code == 200
    for headers in ({}, {"te": "trailers"}):
        for query in ("", "?max_age_ms=0"):
            batch = {"keys": ["a", "none", 7]}
            path = f"http://{router}/v1/stores/counts/batch-get{query}"
            assert httpx.post(path, json=batch, headers=headers).status_code == 200
    for store in ("nobodys", "counts%2F"):
        assert get(router, f"/v1/stores/{store}/keys/a").status_code == 404
        assert httpx.post(f"http://{router}/v1/stores/{store}/batch-get", json={"keys": []}).status_code == 404
    after = samples(router)
    counted = {
        name: after[name] - before.get(name, 0)
        for name in after
        if name.startswith("forebay_router_results_total") and after[name] != before.get(name)
    }
    assert counted == {
        f'forebay_router_results_total{{status="{status}",store="{store}"}}': count
        for status, store, count in (
            (200, "counts", 1 + 2),
            (404, "counts", 1 + 2),
            (412, "counts", 1 + 4),
            (400, "counts", 1 + 4),
            (200, "hours", 1),
            (404, "", 4),
        )
    }


def test_a_worker_says_how_long_its_answers_took(served):
    cluster, _ = served
    worker = next(iter(cluster.workers))
    before = samples(worker)
    for headers in ({}, {"te": "trailers"}):
        # On the fast path, and off it.
        httpx.get(f"http://{worker}/v1/stores/counts/keys/a", headers=headers)
        httpx.post(f"http://{worker}/v1/stores/counts/batch-get", json={"keys": ["a"]}, headers=headers)
    get(worker, "/v1/stores/counts/keys/a", max_age_ms=0, wait_ms=200)
    get(worker, "/v1/stores/hours/keys/jfk/windows")
    after = samples(worker)

    def more(name: str, path: str, store: str = "counts") -> float:
        sample = f'forebay_answer_seconds_{name}route="/v1/stores/{{store}}{path}",store="{store}"}}'
        return after[sample] - before.get(sample, 0)

    assert more("count{", "/keys/{key}") == 3
    assert more("count{", "/batch-get") == 2
    assert more("count{", "/keys/{key}/windows", "hours") == 1
    # The one that waited for its bound.
    assert more("sum{", "/keys/{key}") >= 0.15
    assert more('bucket{le="0.05",', "/keys/{key}") == 2


def received_at_once(address: str, path: str, document: Any) -> httpx.Response:
    """The answer to a batch that takes the fast path, as its head and body arrive together."""
    host, port = address.split(":")
    body = json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head + body)
        answer = HTTPResponse(client)
        answer.begin()
        return httpx.Response(answer.status, content=answer.read())


def stated_lag(answer: httpx.Response) -> Lag:
    """That of an answer; of a batch the worst of its keys'."""
    document = answer.json()
    parts = [result.get("problem", result) for result in document.get("results", [document])]
    return worst_lag([Lag(**part["lag"]) for part in parts if "lag" in part])


@pytest.mark.parametrize(("tier", "prefix"), [("worker", "forebay_"), ("router", "forebay_router_")])
def test_both_tiers_count_how_far_behind_the_answers_of_each_store_were(served, tier, prefix):
    cluster, router = served
    address = router if tier == "router" else next(iter(cluster.workers))
    before = samples(address)
    path, batch = f"http://{address}/v1/stores/counts", {"keys": ["a", "none", "/", 7]}
    # Some: one that takes longer than a moment leaves the fast path.
    answers = [received_at_once(address, "/v1/stores/counts/batch-get", batch) for _ in range(5)]
    # On the fast path, and off it.
    for headers in ({}, {"te": "trailers"}):
        for key, status in (("a", 200), ("none", 404)):
            answers += [httpx.get(f"{path}/keys/{key}", headers=headers) for _ in range(3)]
            assert {answer.status_code for answer in answers[-3:]} == {status}
        answers.append(httpx.post(f"{path}/batch-get", json=batch, headers=headers))
        # Refused, or without a key: they state no lag that was served.
        assert httpx.get(f"{path}/keys/a?max_age_ms=0", headers=headers).status_code == 412
        assert httpx.get(f"{path}/keys/a?max_age_ms=x", headers=headers).status_code == 400
        assert httpx.post(f"{path}/batch-get?max_age_ms=0", json=batch, headers=headers).status_code == 200
        assert httpx.get(f"http://{address}/v1/stores/nobodys/keys/a", headers=headers).status_code == 404
        assert httpx.post(f"{path}/batch-get", content=b" " * (3 << 20), headers=headers).status_code == 413
        nobodys = f"http://{address}/v1/stores/nobodys/batch-get"
        assert httpx.post(nobodys, json=batch, headers=headers).status_code == 404
    lists = [get(address, "/v1/stores/hours/keys/jfk/windows"), get(address, "/v1/stores/hours/windows")]
    count = f'{prefix}served_age_seconds_count{{store="hours"}}'
    # A list is counted once it is sent.
    wait_until(lambda: samples(address)[count] == before.get(count, 0) + 2, "the lists being counted")
    after = samples(address)
    stated = {"counts": [*map(stated_lag, answers)], "hours": [*map(stated_lag, lists)]}
    assert all(None not in lag for lags in stated.values() for lag in lags)
    for place, name in enumerate(("record_lag", "time_lag_seconds", "age_seconds")):
        found = {sample: after[sample] for sample in after if sample.startswith(f"{prefix}served_{name}_bucket")}
        assert {labels_of(sample)["store"] for sample in found} >= stated.keys()
        for sample, now in found.items():
            labels, scale = labels_of(sample), 1 if name == "record_lag" else 1_000
            within = [lag for lag in stated.get(labels["store"], ()) if lag[place] <= scale * float(labels["le"])]
            assert now - before.get(sample, 0) == len(within), sample
    # A refusal has taken its time, too, and a store that does not exist has no name.
    for path, store, answered in (
        ("keys/{key}", "counts", 2 * (3 + 3 + 2)),
        ("batch-get", "counts", 5 + 2 * 3),
        ("keys/{key}", "", 2),
        ("batch-get", "", 2),
        ("keys/{key}/windows", "hours", 1),
    ):
        sample = f'{prefix}answer_seconds_count{{route="/v1/stores/{{store}}/{path}",store="{store}"}}'
        assert after[sample] - before.get(sample, 0) == answered, sample
    assert {labels_of(sample).get("store") for sample in after} <= {
        None,
        "",
        "counts",
        "hours",
        "numbers",
        "pairs",
    }


def labels_of(sample: str) -> dict[str, str]:
    return dict(re.findall(r'(\w+)="([^"]*)"', sample))


def test_a_worker_says_what_its_stores_take(served):
    cluster, _ = served
    worker = next(iter(cluster.workers))
    replicas = [row for row in get(worker, "/v1/lags").json()["lags"] if row["store"] == "counts"]
    reported = samples(worker)

    def of_counts(name: str) -> list[float]:
        return [reported[f'{name}{{partition="{row["partition"]}",store="counts"}}'] for row in replicas]

    held = sum(row["offset"] > 0 for row in replicas)
    assert held
    assert sum(count > 0 for count in of_counts("forebay_store_keys")) == held
    taken = zip(of_counts("forebay_store_disk_bytes"), of_counts("forebay_store_write_buffer_bytes"), strict=True)
    assert all(sum(both) > 0 for both in taken)
    assert reported["forebay_block_cache_bytes"] > 0
    assert 0 < reported["forebay_state_disk_free_bytes"] < reported["forebay_state_disk_size_bytes"]


def samples(address: str) -> dict[str, float]:
    lines = [line for line in get(address, "/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_the_page_of_the_api_loads_everything_from_the_process(served):
    cluster, router = served
    for address in (router, next(iter(cluster.workers))):
        page = get(address, "/docs")
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(loaded) == 4
        for name in loaded:
            found = get(address, f"/{name}")
            assert found.status_code == 200, name
            assert found.headers["content-type"].split(";")[0] in ("text/javascript", "text/css", "image/png")
        # Relative names only, in the page and in the script that starts it; nothing is written into the page.
        start = get(address, "/docs/start.js").text
        assert not re.search(r"//|<script>|\sstyle=|\son\w+=", page.text + start)
        policy = dict(rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; "))
        sources = {source for rule in policy.values() for source in rule.split()}
        assert sources == {"'none'", "'self'", "data:"}
        assert (policy["default-src"], policy["script-src"]) == ("'none'", "'self'")
        assert get(address, "/redoc").status_code == 404
    assert "/v1/stores/{store}/keys/{key}" in get(router, "/openapi.json").json()["paths"]
