"""Stores that keep the headers of records, and show them to whoever asks for them."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from forebay.client import Client
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_client.results import Answer
from forebay_client.store_changes import Values
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.commands import forebay

TOPOLOGY = """
application_id = "test"
[[subtopology]]
name = "only"
partitions = 2
[[subtopology.store]]
name = "orders"
external = true
record_headers = true
[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 86400000
external = true
record_headers = true
[[subtopology.store]]
name = "plain"
external = true
"""
HEADERS = [("trace", b"4bf9"), ("trace", "ü".encode()), ("raw", b"\xff\x00"), ("nothing", None)]
IN_JSON = [
    {"name": "trace", "value": "4bf9"},
    {"name": "trace", "value": "ü"},
    {"name": "raw", "value_base64": "/wA="},
    {"name": "nothing", "value": None},
]
ANN, BOB = {"total": 1}, [2]
_MANY = 120_000
"""Of fewer in a partition none is restored by a process."""


@pytest.fixture
def cluster(kafka_url: str, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=kafka_url, topology_text=TOPOLOGY) as cluster:
        produce(cluster, "orders", b"ann", ANN, HEADERS)
        produce(cluster, "orders", b"bob", BOB, [])
        produce(cluster, "prices", b"ann", ANN, HEADERS)
        produce(cluster, "plain", b"ann", ANN, HEADERS)
        yield cluster


def produce(cluster: Cluster, store: str, key: bytes, value: object, headers: list) -> None:
    """As others do, and a heartbeat beside it."""
    spec = cluster.topology.stores[store]
    producer = Producer(cluster.changelog.kafka.librdkafka())
    content = None if value is None else json.dumps(value)
    producer.produce(spec.topic, key=key, value=content, headers=headers, partition=cluster.partition(spec, key))
    assert producer.flush(30) == 0
    cluster.put(store, {})


def read(address: str, path: str, **parameters: str | int) -> httpx.Response:
    return httpx.get(f"http://{address}/v1/stores/{path}", params=parameters, timeout=10)


@pytest.mark.kafka
def test_every_read_shows_the_headers_that_it_asks_for(cluster):
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    for address in (*cluster.workers, router):
        answer = read(address, "orders/keys/ann", headers="true").json()
        assert (answer["value"], answer["headers"]) == (ANN, IN_JSON)
        answer = read(address, "orders/keys/bob", headers="true", numbers="text").json()
        assert (answer["value"], answer["headers"]) == (BOB, [])
        assert "headers" not in read(address, "orders/keys/ann").json()
        listed = read(address, "orders/entries", headers="true").json()["entries"]
        assert {item["key"]: (item["value"], item["headers"]) for item in listed} == {
            "ann": (ANN, IN_JSON),
            "bob": (BOB, []),
        }
        [version] = read(address, "prices/keys/ann/versions", headers="true").json()["versions"]
        assert (version["value"], version["headers"]) == (ANN, IN_JSON)
        assert read(address, "prices/keys/ann").json()["value"] == ANN
        refused = read(address, "plain/keys/ann", headers="true")
        assert refused.status_code == 400
        assert "set record_headers = true" in refused.json()["detail"]
    with Client(f"http://{router}") as client:
        got = [client.get("orders", "ann", headers=True), *client.get_many("orders", ["ann"], headers=True)]
        assert [(one.value, list(one.headers)) for one in got] == [(ANN, HEADERS)] * 2
        assert client.get("orders", "ann").headers == ()
        assert sorted(len(entry.headers) for entry in client.entries("orders", headers=True)) == [0, 4]
        with client.changes("orders", "ann", headers=True) as changes:
            assert list(next(changes).headers) == HEADERS
        for options, shown in (({"headers": True}, tuple(HEADERS)), ({}, ())):
            with client.changes("orders", keys=["ann"], **options) as changes:
                assert next(change for change in changes if isinstance(change, Values)).items[0].headers == shown
        with client.changes("orders", "bob") as changes, client.changes("orders", "bob", headers=True) as headed:
            assert next(changes).value == next(headed).value == BOB
            produce(cluster, "orders", b"bob", BOB, HEADERS)
            assert list(next(one for one in headed if isinstance(one, Answer)).headers) == HEADERS
            produce(cluster, "orders", b"bob", ANN, HEADERS)
            # Without headers, a value that was written again as it was is none.
            assert next(one for one in changes if isinstance(one, Answer)).value == ANN
    for path in ("plain/entries", "plain/keys/ann/changes", "plain/changes"):
        for address in (*cluster.workers, router):
            assert read(address, path, headers="true").status_code == 400, path


@pytest.mark.kafka
def test_headers_are_those_of_the_record_that_wrote_the_value(cluster):
    worker = cluster.start_worker(None, "--restore-processes", "0")
    wait_until(lambda: read(worker, "orders/keys/ann", headers="true").status_code == 200, "the first value")
    produce(cluster, "orders", b"ann", ANN, [("trace", b"2")])
    wait_until(
        lambda: read(worker, "orders/keys/ann", headers="true").json()["headers"] == [IN_JSON[0] | {"value": "2"}],
        "the headers of the second",
    )
    produce(cluster, "orders", b"ann", None, HEADERS)
    wait_until(lambda: read(worker, "orders/keys/ann", headers="true").status_code == 404, "the deletion")


@pytest.mark.kafka
def test_a_store_that_is_to_keep_them_from_now_on_is_rebuilt_with_them(cluster):
    cluster.topology_path.write_text(cluster.topology_text.replace("record_headers = true", ""))
    worker = cluster.start_worker()
    assert read(worker, "orders/keys/ann").json()["value"] == ANN
    cluster.kill(worker, signal.SIGTERM)
    cluster.topology_path.write_text(cluster.topology_text)
    cluster.start_worker(worker)
    answer = read(worker, "orders/keys/ann", headers="true").json()
    assert (answer["value"], answer["headers"]) == (ANN, IN_JSON)


@pytest.mark.kafka
def test_tail_shows_headers_where_the_store_keeps_them(cluster):
    log = ("--topology", str(cluster.topology_path), "--changelog", cluster.changelog.url)
    shown = forebay("changelog", "tail", "orders", "--from-beginning", "--json", *log).stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(row["value"], row["headers"]) for row in rows if row.get("key") == "ann"] == [(ANN, IN_JSON)]
    shown = forebay("changelog", "tail", "plain", "--from-beginning", "--json", *log).stdout
    assert not any("headers" in json.loads(line) for line in shown.splitlines())


@pytest.mark.kafka
def test_a_restore_in_bulk_keeps_them(cluster):
    spec = cluster.topology.stores["orders"]
    producer = Producer(cluster.changelog.kafka.librdkafka())
    for number in range(_MANY):
        key = b"%d" % number
        producer.produce(
            spec.topic, b"1", key, cluster.partition(spec, key), headers=[("number", key)], on_delivery=None
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    cluster.put("orders", {})
    worker = cluster.start_worker(None, "--restore-processes", "1")
    for number in (0, _MANY - 1):
        answer = read(worker, f"orders/keys/{number}", headers="true", max_record_lag=0).json()
        assert (answer["value"], answer["headers"]) == (1, [{"name": "number", "value": str(number)}])
    assert b"records restored" in b"".join(path.read_bytes() for path in cluster.directory.glob("state-*.log"))


def test_records_on_sqlite_have_none(tmp_path):
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY)
    SqliteChangelog(tmp_path / "log").ensure_topic("any", 1)
    refused = forebay("changelog", "tail", "orders", "--topology", path, "--changelog", f"sqlite:{tmp_path}/log")
    assert refused.returncode != 0
    assert "record_headers = true, but records on SQLite have none" in refused.stderr
