"""Stores whose keys carry the id of a schema: one key has a form for each, perhaps in several partitions."""

import contextlib
import json
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from forebay.client import Client
from forebay.partitioning import Murmur2Partitioner
from forebay.position import decode_position
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.commands import forebay
from tests.support.schema_registry import SchemaRegistry

PARTITIONS = 3
TOPOLOGY = f"""
application_id = "test"
[[subtopology]]
name = "only"
partitions = {PARTITIONS}
[[subtopology.store]]
name = "customers"
external = true
key = "avro"
value = "string"
"""
OLD = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "string"}],
}
NEW = {**OLD, "name": "Identity"}
KEY = SerializationContext("customers", MessageField.KEY)
SNOWFLAKE = 2**60


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest, registry: SchemaRegistry, tmp_path: Path) -> Iterator[Cluster]:
    kafka = str(request.getfixturevalue("kafka_url")) if request.param == "kafka" else None
    options = ("--schema-registry", registry.url)
    with running_cluster(tmp_path, kafka=kafka, topology_text=TOPOLOGY, worker_options=options) as cluster:
        yield cluster


class Producer:
    """Writes as Confluent's serializer and Kafka's own partitioner do."""

    def __init__(self, cluster: Cluster, registry: SchemaRegistry) -> None:
        self._cluster = cluster
        self._registry = registry
        self._batches = 0

    def written(self, key: Any, schema: Any) -> bytes:
        """The bytes of a key."""
        self._registry.is_away, away = False, self._registry.is_away
        client = SchemaRegistryClient({"url": self._registry.url})
        found: bytes = AvroSerializer(client, json.dumps(schema))(key, KEY)
        self._registry.is_away = away
        return found

    def partition(self, key: Any, schema: Any) -> int:
        return Murmur2Partitioner().partition(self.written(key, schema), PARTITIONS)

    def put(self, key: Any, schema: Any, value: str | None, timestamp_ms: int) -> None:
        """Append one record."""
        self._batches += 1
        row = (self.written(key, schema), None if value is None else value.encode(), timestamp_ms)
        spec = self._cluster.topology.stores["customers"]
        self._cluster.log.append(spec, {self.partition(key, schema): [row]}, "customers", self._batches)


def found_by(producer: Producer, keys: Iterable[dict[str, Any]], *, moves: bool) -> dict[str, Any]:
    """A key whose two forms are in one partition, or not."""
    producer.written(next(iter(keys)), OLD)
    return next(key for key in keys if (producer.partition(key, OLD) != producer.partition(key, NEW)) is moves)


def read(address: str, key: dict[str, Any], **parameters: str | int) -> httpx.Response:
    path = httpx.URL(f"http://{address}").copy_with(raw_path=b"/v1/stores/customers/keys/" + segment(key))
    return httpx.get(path, params=parameters, timeout=10)


def segment(key: dict[str, Any]) -> bytes:
    return json.dumps(key).replace('"', "%22").replace(" ", "%20").replace("{", "%7B").replace("}", "%7D").encode()


def shown(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, ensure_ascii=False)


def failures(address: str) -> set[str]:
    with contextlib.suppress(httpx.TransportError, KeyError):
        rows = httpx.get(f"http://{address}/v1/lags").json()["lags"]
        return {row["failure"] for row in rows if "failure" in row}
    return set()


def value_of(address: str, key: dict[str, Any]) -> str | None:
    answer = read(address, key, max_record_lag=0, wait_ms=5000)
    assert answer.status_code in (200, 404), answer.text
    return answer.json().get("value")


KEYS = [{"id": SNOWFLAKE + n, "at": "é"} for n in range(50)]


@pytest.mark.parametrize("moves", [True, False], ids=["in two partitions", "in one"])
def test_the_newest_form_of_a_key_is_its_value(cluster, registry, moves):
    """Whichever schema wrote it: a producer may go back to an older one. A deletion is of one form."""
    producer = Producer(cluster, registry)
    key = found_by(producer, KEYS, moves=moves)
    producer.put(key, OLD, "first", 1_000)
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    assert value_of(router, key) == "first"
    answer = read(router, {"at": "é", "id": key["id"]})
    document = answer.json()
    assert (document["key"], document["partition"]) == (key, producer.partition(key, OLD))
    # What other partitions say is part of the answer.
    assert decode_position(document["position"]).offsets.keys() == {0, 1, 2}
    assert answer.headers["forebay-position"] == document["position"]
    assert answer.headers["forebay-time-lag-ms"] == str(document["lag"]["time_lag_ms"])
    for at_ms, schema, value, newest in (
        (2_000, NEW, "second", "second"),
        (3_000, OLD, "third", "third"),
        (4_000, OLD, None, "second"),
        (5_000, NEW, None, None),
    ):
        producer.put(key, schema, value, at_ms)
        wait_until(lambda newest=newest: value_of(router, key) == newest, f"{newest}")  # type: ignore[misc]
        [result] = httpx.post(f"http://{router}/v1/stores/customers/batch-get", json={"keys": [key]}).json()[
            "results"
        ]
        assert result.get("value") == newest
        assert ("problem" in result) == (newest is None)


@pytest.mark.parametrize("moves", [True, False], ids=["in two partitions", "in one"])
def test_an_older_form_does_not_count(cluster, registry, moves):
    """Not even if it is too old for the read. Of two forms of one time it is always the same that counts."""
    producer = Producer(cluster, registry)
    key = found_by(producer, KEYS, moves=moves)
    now_ms = int(time.time() * 1000)
    producer.put(key, OLD, "first", 1)
    producer.put(key, NEW, "second", now_ms)
    worker = cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    # Nor does the read wait for another.
    for more in ({}, {"wait_ms": 20_000}, {"wait_ms": 20_000, "require_active": "true"}):
        assert read(router, key, max_record_age_ms=600_000, **more).json()["value"] == "second"
    query = {"max_record_age_ms": 600_000}
    batch = httpx.post(f"http://{router}/v1/stores/customers/batch-get", params=query, json={"keys": [key]}).json()
    assert batch["results"][0]["value"] == "second"
    refused = read(worker, key, partition=producer.partition(key, OLD), max_record_age_ms=600_000)
    assert refused.status_code == (412 if moves else 200)
    producer.put(key, OLD, "third", now_ms)
    wait_until(lambda: "third" in httpx.get(f"http://{router}/v1/stores/customers/entries").text, "the third")
    assert len({value_of(router, key) for _ in range(20)}) == 1


EITHER = [
    {"type": "record", "name": "Customer", "fields": [{"name": "id", "type": "long"}]},
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]},
]


def test_keys_that_only_their_type_tells_apart_are_kept_apart(cluster, registry):
    """They are one key in JSON, here of one partition. A deletion of one leaves the other."""
    producer = Producer(cluster, registry)
    pairs = [(("Customer", {"id": number}), ("Order", {"id": number})) for number in range(50)]
    customer, order = next(
        pair for pair in pairs if producer.partition(pair[0], EITHER) == producer.partition(pair[1], EITHER)
    )
    key = order[1]
    producer.put(customer, EITHER, "c", 1)
    producer.put(order, EITHER, "o", 2)
    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    entries = f"http://{router}/v1/stores/customers/entries"
    found = httpx.get(entries).json()["entries"]
    assert sorted((one["value"], one["key"], one["key_schema_id"]) for one in found) == [
        ("c", key, 100),
        ("o", key, 100),
    ]
    assert value_of(router, key) == "o"
    producer.put(order, EITHER, None, 3)
    wait_until(lambda: value_of(router, key) == "c", "the other one")


def test_lists_and_streams_name_the_schema_of_a_key(cluster, registry):
    producer = Producer(cluster, registry)
    key, other = found_by(producer, KEYS, moves=True), found_by(producer, KEYS, moves=False)
    for at_ms, (one, schema) in enumerate(((key, OLD), (key, NEW), (other, NEW)), 1):
        producer.put(one, schema, f"v{at_ms}", at_ms)
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    entries = {(shown(key), 100, "v1"), (shown(key), 101, "v2"), (shown(other), 101, "v3")}
    with Client(f"http://{router}") as client:
        listed = client.entries("customers")
        assert {(shown(one.key), one.key_schema_id, one.value) for one in listed} == entries
        assert client.get("customers", key).value == "v2"
        with client.changes("customers") as changes:
            seen: set[tuple[str, int | None, str]] = set()
            while seen < entries:
                items = getattr(next(changes), "items", ())
                seen |= {(shown(one.key), one.key_schema_id, one.value) for one in items}
    prefix = {"prefix": shown(key).replace(" ", "")}
    of_one = httpx.get(f"http://{router}/v1/stores/customers/entries", params=prefix).json()["entries"]
    assert [(one["key"], one["key_schema_id"]) for one in of_one] == [(key, 100), (key, 101)]


def test_a_form_in_an_unreachable_partition_is_not_passed_over(registry, tmp_path):
    """It may be the newest one."""
    options = ("--schema-registry", registry.url, "--num-standby-replicas", "0", "--session-timeout-ms", "20000")
    with running_cluster(tmp_path, topology_text=TOPOLOGY, worker_options=options) as cluster:
        producer = Producer(cluster, registry)
        key = found_by(producer, KEYS, moves=True)
        producer.put(key, OLD, "first", 1)
        producer.put(key, NEW, "second", 2)
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        assert value_of(router, key) == "second"
        holders = cluster.roles(router, "customers")
        kept, lost = producer.partition(key, OLD), producer.partition(key, NEW)
        if holders[kept].keys() == holders[lost].keys():
            lost = next(partition for partition in holders if holders[partition].keys() != holders[kept].keys())
        cluster.kill(next(iter(holders[lost])))
        refused = read(router, key)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:forebay:problem:no-replica")


def test_a_partition_waits_for_the_schema_of_a_key(cluster, registry):
    producer = Producer(cluster, registry)
    key = found_by(producer, KEYS, moves=False)
    producer.put(key, OLD, "first", 1)
    worker = cluster.start_worker()
    partition = producer.partition(key, OLD)
    assert read(worker, key, partition=partition).json()["value"] == "first"
    # A restart needs no registry for what it knows.
    registry.is_away = True
    cluster.kill(worker, signal.SIGTERM)
    cluster.start_worker(worker)
    assert read(worker, key, partition=partition).json()["value"] == "first"
    producer.put(key, NEW, "second", 2)
    wait_until(lambda: any("schema 101" in one for one in failures(worker)), "a failure")
    assert read(worker, key, partition=partition).json()["value"] == "first"
    assert read(worker, key, partition=partition, max_record_lag=0).status_code == 412
    registry.is_away = False
    wait_until(lambda: read(worker, key, partition=partition).json()["value"] == "second", "the new form")


def test_what_no_schema_decodes_stops_the_partition(cluster, registry):
    producer = Producer(cluster, registry)
    key = KEYS[0]
    producer.put(key, OLD, "good", 1)
    spec = cluster.topology.stores["customers"]
    [partition] = {producer.partition(key, OLD)}
    cluster.log.append(spec, {partition: [(producer.written(key, OLD)[:-1], b"bad", 2)]}, "customers", 9)
    worker = cluster.start_worker(ready=False)
    wait_until(lambda: failures(worker), "a failure")
    [failure] = failures(worker)
    assert f"partition {partition}, does not fit the store 'customers'" in failure
    assert "the schema 100 does not decode it" in failure
    assert 'on_bad_value = "skip"' in failure


def test_a_worker_wants_the_partition_named_and_tail_shows_the_key(cluster, registry):
    producer = Producer(cluster, registry)
    key = KEYS[0]
    producer.put(key, OLD, "v", 1)
    worker = cluster.start_worker()
    refused = read(worker, key)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:forebay:problem:unknown-partitioner")
    log = ("--topology", cluster.topology_path, "--changelog", cluster.changelog.url, "--json")
    for options, shown in ((("--schema-registry", registry.url), (key, 100)), ((), (None, None))):
        lines = forebay("changelog", "tail", "customers", *log, *options).stdout.splitlines()
        [row] = [row for row in map(json.loads, lines) if "value" in row]
        assert (row.get("key"), row.get("key_schema_id")) == shown
        assert ("fault" in row) == (not options)
