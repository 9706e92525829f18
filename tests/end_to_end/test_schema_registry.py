"""Stores of values with a schema: others write them with Confluent's serializers, and a registry may be away."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from forebay.client import Client
from tests.support.cluster import Cluster, free_port, restore_processes, running_cluster, wait_until
from tests.support.commands import forebay
from tests.support.schema_registry import SchemaRegistry

TOPOLOGY = """
application_id = "test"
[[subtopology]]
name = "only"
partitions = 2
[[subtopology.store]]
name = "orders"
external = true
value = "avro"
[[subtopology.store]]
name = "hourly"
kind = "window"
window_size_ms = 3600000
retention_ms = 86400000
external = true
value = "avro"
"""
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "long"}]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "price", "type": ["null", PRICE], "default": None}]}
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_url(request: pytest.FixtureRequest) -> str | None:
    """Of brokers; None for SQLite."""
    return str(request.getfixturevalue("kafka_url")) if request.param == "kafka" else None


@pytest.fixture
def cluster(log_url: str | None, registry: SchemaRegistry, tmp_path: Path) -> Iterator[Cluster]:
    options = ("--schema-registry", registry.url)
    with running_cluster(tmp_path, kafka=log_url, topology_text=TOPOLOGY, worker_options=options) as cluster:
        yield cluster


def order(registry: SchemaRegistry, total: int, schema: Any = FIRST) -> bytes:
    registry.is_away, away = False, registry.is_away
    found: bytes = AvroSerializer(SchemaRegistryClient({"url": registry.url}), json.dumps(schema))(
        {"total": total}, VALUE
    )
    registry.is_away = away
    return found


def read(address: str, key: str, **parameters: str | int) -> httpx.Response:
    return httpx.get(f"http://{address}/v1/stores/orders/keys/{key}", params=parameters, timeout=10)


def failures(address: str) -> set[str]:
    rows = httpx.get(f"http://{address}/v1/lags").json()["lags"]
    return {row["failure"] for row in rows if "failure" in row}


def test_every_read_shows_values_and_the_ids_of_their_schemas(cluster, registry):
    """Of two schemas, as both were written: an evolution rewrites nothing."""
    cluster.put("orders", {b"ann": order(registry, 2**60), b"bob": order(registry, 7, SECOND), b"gone": None})
    cluster.put("hourly", {b"ann\x00\x00\x00\x00\x00\x00\x00\x00": order(registry, 1)})
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    ann, bob = {"total": 2**60}, {"total": 7, "price": None}
    for address in (*cluster.workers, router):
        answer = read(address, "ann").json()
        assert (answer["value"], answer["schema_id"]) == (ann, 100)
        answer = read(address, "bob", numbers="text").json()
        assert (answer["value"], answer["schema_id"]) == ({"total": "7", "price": None}, 101)
        assert read(address, "gone").status_code == 404
        listed = httpx.get(f"http://{address}/v1/stores/orders/entries").json()["entries"]
        assert {item["key"]: (item["value"], item["schema_id"]) for item in listed} == {
            "ann": (ann, 100),
            "bob": (bob, 101),
        }
        [window] = httpx.get(f"http://{address}/v1/stores/hourly/keys/ann/windows").json()["windows"]
        assert (window["value"], window["schema_id"]) == ({"total": 1}, 100)
    with Client(f"http://{router}") as client:
        got = [client.get("orders", "bob"), client.get_many("orders", ["bob"])[0]]
        assert [(one.value, one.schema_id) for one in got] == [(bob, 101)] * 2
        assert sorted(entry.schema_id for entry in client.entries("orders")) == [100, 101]
        with client.changes("orders", "ann") as changes:
            assert next(changes).schema_id == 100


def test_a_registry_that_is_away_delays_only_what_has_a_new_schema(cluster, registry):
    cluster.put("orders", {b"a": order(registry, 1)})
    worker = cluster.start_worker()
    assert read(worker, "a").json()["value"] == {"total": 1}
    new = order(registry, 2, SECOND)
    registry.is_away = True
    # Known schemas are known after a restart, too.
    cluster.kill(worker, signal.SIGTERM)
    cluster.start_worker(worker)
    assert read(worker, "a").json()["value"] == {"total": 1}
    key = next(key for key in (b"b", b"c", b"d") if _partition(cluster, key) != _partition(cluster, b"a"))
    ends = cluster.put("orders", {key: new, b"a": order(registry, 3)})
    assert len(ends) == 2
    wait_until(lambda: read(worker, "a").json()["value"] == {"total": 3}, "the known schema")
    wait_until(lambda: failures(worker), "a failure")
    [failure] = failures(worker)
    assert "The registry did not give the schema 101" in failure or "101 is being fetched" in failure
    assert read(worker, key.decode(), max_record_lag=0).status_code == 412
    registry.is_away = False
    wait_until(lambda: read(worker, key.decode(), max_record_lag=0).status_code == 200, "the new schema")
    assert read(worker, key.decode()).json()["value"] == {"total": 2, "price": None}
    wait_until(lambda: not failures(worker), "no failure")


def _partition(cluster: Cluster, key: bytes) -> int:
    return cluster.partition(cluster.topology.stores["orders"], key)


def test_reads_of_values_whose_schema_is_missing_are_refused_until_it_is_there(registry, tmp_path):
    """As on a worker that has copied its store from another; values of other schemas are answered."""
    options = ("--schema-registry", registry.url)
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=options) as cluster:
        cluster.put("orders", {b"a": order(registry, 1), b"b": order(registry, 2, SECOND)})
        worker = cluster.start_worker()
        cluster.kill(worker, signal.SIGTERM)
        [kept] = tmp_path.glob("state-0/**/avro-101.json")
        kept.unlink()
        registry.is_away = True
        cluster.start_worker(worker)
        stores = f"http://{worker}/v1/stores/orders"
        assert read(worker, "a").json()["value"] == {"total": 1}
        batch = {"keys": ["b"]}
        for keys in (["b", "a"], ["b", *["a"] * 499]):
            refused, found = httpx.post(f"{stores}/batch-get", json={"keys": keys}).json()["results"][:2]
            assert refused["problem"]["type"].endswith("schema-unavailable")
            assert found["value"] == {"total": 1}
        for refused in (read(worker, "b"), httpx.get(f"{stores}/entries")):
            assert (refused.status_code, refused.headers["forebay-problem"]) == (503, "schema-unavailable")
            assert "schema 101" in refused.json()["detail"]
            assert int(refused.headers["retry-after"]) >= 1
        for path in ("changes", "keys/b/changes"):
            with httpx.stream("GET", f"{stores}/{path}", timeout=10) as stream:
                assert "schema-unavailable" in next(chunk for chunk in stream.iter_text() if "schema" in chunk)
        registry.is_away = False
        wait_until(lambda: read(worker, "b").status_code == 200, "the schema")
        assert httpx.post(f"{stores}/batch-get", json=batch).json()["results"][0]["schema_id"] == 101


def test_what_no_schema_decodes_is_skipped_where_that_is_allowed(log_url, registry, tmp_path):
    text = TOPOLOGY.replace('name = "orders"\n', 'name = "orders"\non_bad_value = "skip"\n')
    options = ("--schema-registry", registry.url)
    with running_cluster(tmp_path, kafka=log_url, topology_text=text, worker_options=options) as cluster:
        good = order(registry, 1)
        cluster.put("orders", {b"a": good})
        for bad in (b"{}", good[:-1], good[:1] + b"\x7f\x00\x00\x00" + good[5:]):
            cluster.put("orders", {b"a": bad})
        cluster.put("orders", {b"b": order(registry, 2)})
        worker = cluster.start_worker()
        wait_until(lambda: read(worker, "b", max_record_lag=0).status_code == 200, "the end")
        assert [read(worker, key).json()["value"] for key in "ab"] == [{"total": 1}, {"total": 2}]


def test_a_restore_process_reads_schemas_as_well(log_url, registry, tmp_path):
    """It restores what is far behind, and stops before what it cannot decode as the worker does."""
    text = TOPOLOGY.replace("partitions = 2", "partitions = 1")
    options = ("--schema-registry", registry.url)
    with running_cluster(tmp_path, kafka=log_url, topology_text=text, worker_options=options) as cluster:
        value = order(registry, 5)
        for part in range(4):
            cluster.put("orders", {b"k%d" % (part * 15_000 + i): value for i in range(15_000)})
        worker = cluster.start_worker(ready=False)
        wait_until(lambda: restore_processes(cluster.workers[worker].pid), "a restore process")
        cluster.wait_ready(worker)
        wait_until(lambda: read(worker, "k59999", max_record_lag=0).status_code == 200, "the end")
        assert read(worker, "k59999").json()["value"] == {"total": 5}
        assert "restored in bulk" in cluster.logs()


@pytest.mark.parametrize("what", ["values", "keys"])
def test_a_worker_without_a_registry_refuses_to_start(tmp_path, what):
    text = TOPOLOGY if what == "values" else TOPOLOGY.replace('value = "avro"', 'key = "avro"', 1)
    (tmp_path / "topology.toml").write_text(text)
    options = ("--topology", tmp_path / "topology.toml", "--changelog", f"sqlite:///{tmp_path / 'log'}")
    refused = forebay(
        "worker", *options, "--state-dir", tmp_path / "state", "--listen", f"127.0.0.1:{free_port()}"
    )
    assert refused.returncode == 2
    assert f"The store 'orders' has {what} of avro with schemas: set schema_registry" in refused.stderr


@pytest.mark.kafka
def test_tail_decodes_by_the_registry_that_it_is_given(cluster, registry):
    cluster.put("orders", {b"ann": order(registry, 2**60)})
    log = ("--topology", cluster.topology_path, "--changelog", cluster.changelog.url, "--json")
    shown = forebay("changelog", "tail", "orders", *log, "--schema-registry", registry.url).stdout
    [row] = [row for row in map(json.loads, shown.splitlines()) if "key" in row]
    assert (row["value"], row["schema_id"]) == ({"total": 2**60}, 100)
    shown = forebay("changelog", "tail", "orders", *log).stdout
    [row] = [row for row in map(json.loads, shown.splitlines()) if "key" in row]
    assert "knows no schema registry" in row["fault"]
