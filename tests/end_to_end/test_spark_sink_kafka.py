"""The sink on a real Spark and a real broker: what it writes is read back, and repeats change nothing."""

import random
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.clock import epoch_ms
from forebay.errors import SinkError
from tests.changelog.test_command import run as command
from tests.conftest import need_kafka, spark_kafka_jars
from tests.end_to_end.test_spark_sink import Source, refusal, run
from tests.end_to_end.test_state_tap import running_tap
from tests.support.cluster import Cluster, running_cluster, unstamped, wait_until
from tests.support.local_spark import use_jvm

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "all"
partitions = 3

[[subtopology.store]]
name = "latest"

[[subtopology.store]]
name = "counted"
spark_state = { fields = [{ name = "n", position = 0, function = "count" }] }

[[subtopology.store]]
name = "customers"
latest_by = "lsn"

[[subtopology.store]]
name = "prices"
kind = "versioned"
history_retention_ms = 86400000

[[subtopology.store]]
name = "minutes"
kind = "window"
window_size_ms = 60000
retention_ms = 86400000
"""


def session(**more: object) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "driver.host": "127.0.0.1",
        "driver.bindAddress": "127.0.0.1",
        "ui.enabled": False,
        "sql.streaming.pollingDelay": "50ms",
    }.items():
        builder = builder.config(f"spark.{name}", value)
    for name, value in {"sql_shuffle_partitions": 2, **more}.items():
        builder = builder.config(f"spark.{name.replace('_', '.')}", value)
    built = builder.getOrCreate()
    built.sparkContext.setLogLevel("OFF")
    return built


@pytest.fixture(scope="module")
def jars() -> str:
    need_kafka()
    return spark_kafka_jars()


@pytest.fixture(scope="module")
def spark(jars: str) -> Iterator[Any]:
    use_jvm(jars)
    running = session(jars=jars)
    yield running
    running.stop()


@pytest.fixture
def cluster(kafka_url: str, tmp_path: Any) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=kafka_url, topology_text=TOPOLOGY) as cluster:
        yield cluster


@pytest.fixture
def sink(cluster: Cluster) -> Any:
    from forebay.spark import Sink

    return Sink(cluster.topology_path, changelog=cluster.changelog.url)


def served(cluster: Cluster) -> str:
    cluster.start_worker()
    router = cluster.start_router()
    cluster.wait_settled(router, replicas=1)
    return router


def test_sink_position_makes_written_rows_readable(spark, sink, cluster, tmp_path, monkeypatch):
    """A repeated batch changes nothing."""
    router = served(cluster)
    url = f"http://{router}/v1/stores/latest/keys"
    source = Source(spark, tmp_path / "in", "k string, n bigint, gone boolean")
    source.add(*({"k": f"k{i}", "n": i, "gone": i % 7 == 0} for i in range(100)))
    writer = sink.write(source.df, "latest", key="k", value=["n"], delete="gone")
    destination, calls = sink._log.destination, []

    def twice(rows: Any, spec: Any, batch: Any) -> None:
        for _ in range(2):
            calls.append(batch.number)
            type(destination).write(destination, rows, spec, batch)

    monkeypatch.setattr(destination, "write", twice)
    run(writer, tmp_path)
    assert calls == [0, 0]
    for i in range(100):
        answer = httpx.get(f"{url}/k{i}", params={"min_position": sink.position("latest"), "wait_ms": 10_000})
        assert answer.status_code == (404 if i % 7 == 0 else 200)
        assert answer.json().get("value") == (None if i % 7 == 0 else {"n": i})


def test_large_value_needs_the_property_that_is_named(spark, sink, cluster, tmp_path):
    """A value above the producer's limit is refused with the property to set."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    from forebay.spark import Sink

    source = Source(spark, tmp_path / "in", "k string, v string")
    source.add({"k": "large", "v": "x" * 2_000_000})
    message = refusal(sink.write(source.df, "latest", key="k"), tmp_path)
    assert "message.max.bytes in the changelog's URL" in message
    larger = ConfigEntry("max.message.bytes", "4000000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource("TOPIC", sink.topology.stores["latest"].topic, incremental_configs=[larger])
    admin = AdminClient({"bootstrap.servers": cluster.changelog.kafka.bootstrap_servers})
    for done in admin.incremental_alter_configs([topic]).values():
        done.result(20)
    url = f"{cluster.changelog.url}?message.max.bytes=4000000&compression.type=none"
    run(Sink(cluster.topology_path, changelog=url).write(source.df, "latest", key="k"), tmp_path)
    router = served(cluster)
    assert len(httpx.get(f"http://{router}/v1/stores/latest/keys/large").json()["value"]["v"]) == 2_000_000


def test_two_rows_of_a_key_need_order_by(spark, sink, cluster, tmp_path):
    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add({"k": "a", "n": 2}, {"k": "a", "n": 1})
    assert "more than one row for the key b'a'" in refusal(sink.write(source.df, "latest", key="k"), tmp_path)
    run(sink.write(source.df, "latest", key="k", order_by="n"), tmp_path, "ordered")
    router = served(cluster)
    assert httpx.get(f"http://{router}/v1/stores/latest/keys/a").json()["value"] == {"n": 2}


def test_a_batch_is_computed_once_and_what_was_looked_at_is_sent(spark, sink, cluster, tmp_path):
    """A second computation may give other rows, as random ones are."""
    from pyspark.sql import functions as F

    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add(*({"k": f"k{n}", "n": n} for n in range(20)))
    computed = spark.sparkContext.accumulator(0)
    spark.sparkContext.pythonExec = sys.executable

    @F.udf("double")
    def drawn(n):  # type: ignore[no-untyped-def]
        computed.add(1)
        return n + random.random()

    run(sink.write(source.df.select("k", drawn("n").alias("v")), "latest", key="k"), tmp_path)
    assert computed.value == 20
    router = served(cluster)
    entries = httpx.get(f"http://{router}/v1/stores/latest/entries").json()["entries"]
    assert sorted(int(entry["value"]["v"]) for entry in entries) == list(range(20))


def test_rows_that_multiply_after_an_aggregation_are_refused(spark, sink, cluster, tmp_path):
    """The plan shows one row of a key only where nothing comes after it."""
    from pyspark.sql import functions as F

    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add({"k": "a", "n": 2})
    doubled = source.df.groupBy("k").count().select("k", F.explode(F.array(F.lit(1), F.lit(2))).alias("n"))
    assert "more than one row for the key b'a'" in refusal(sink.write(doubled, "latest", key="k"), tmp_path)


def test_latest_by_replicas_agree_after_compaction(spark, sink, cluster, tmp_path):
    """A replica from before compaction and one restored after it have the highest orders."""
    router = served(cluster)
    source = Source(spark, tmp_path / "in", "k string, lsn bigint, v int, gone boolean")
    snapshot = [{"k": key, "lsn": -5, "v": 0} for key in "abc"]
    source.add({"k": "a", "lsn": 7, "v": 7}, {"k": "a", "lsn": 3, "v": 3}, {"k": "b", "lsn": 8, "gone": True})
    source.add(*snapshot * 2)
    source.add({"k": "b", "lsn": 4, "v": 4}, {"k": "a", "lsn": 7, "v": 70})
    run(sink.write(source.df, "customers", key="k", value="v", delete="gone"), tmp_path)
    command(cluster, "compact", "customers")
    assert command(cluster, "compact", "customers").startswith("0 records of ")
    expected = [{"key": "a", "value": {"v": 70}}, {"key": "c", "value": {"v": 0}}]
    bound = {"min_position": sink.position("customers"), "wait_ms": 10_000}

    def entries(address: str) -> Any:
        answer = httpx.get(f"http://{address}/v1/stores/customers/keys/b", params=bound)
        assert answer.status_code == 404, answer.text
        listed = httpx.get(f"http://{address}/v1/stores/customers/entries").json()["entries"]
        return sorted(unstamped(listed), key=lambda entry: str(entry["key"]))

    assert entries(router) == expected
    another = cluster.start_worker()
    cluster.wait_settled(router)
    assert entries(another) == expected


def test_a_query_that_another_superseded_writes_no_row(spark, sink, cluster, tmp_path):
    from pyspark.errors import StreamingQueryException

    from forebay.spark import Sink

    source = Source(spark, tmp_path / "in", "k string, n bigint")
    source.add({"k": "a", "n": 1})
    run(sink.write(source.df, "latest", key="k"), tmp_path, "old")
    other = Sink(cluster.topology_path, changelog=cluster.changelog.url)
    run(other.write(source.df, "latest", key="k"), tmp_path, "new")
    source.add({"k": "a", "n": 2})
    with pytest.raises(StreamingQueryException, match="Two queries write as 'latest'"):
        run(sink.write(source.df, "latest", key="k"), tmp_path, "old")
    router = served(cluster)
    assert httpx.get(f"http://{router}/v1/stores/latest/keys/a").json()["value"] == {"n": 1}


def test_windows_are_where_their_keys_are(spark, sink, cluster, tmp_path):
    from pyspark.sql import functions as F

    now_s = int(time.time()) // 60 * 60
    source = Source(spark, tmp_path / "in", "k string, at timestamp")
    at = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s - age_s)) for age_s in (0, 60, 120)]
    source.add(*({"k": f"k{i}", "at": moment} for i in range(20) for moment in at))
    counts = source.df.groupBy("k", F.window("at", "1 minute")).count()
    run(sink.write(counts, "minutes", key="k"), tmp_path)
    url = f"http://{served(cluster)}/v1/stores/minutes/keys"
    # Kafka's own partitioner would place each window by itself.
    for i in range(20):
        windows = httpx.get(f"{url}/k{i}/windows").json()["windows"]
        assert [window["value"] for window in windows] == [{"count": 1}] * 3


def test_a_plain_jobs_keys_are_found_wherever_spark_put_them(spark, cluster, tmp_path):
    source = Source(spark, tmp_path / "in", "customer string, total bigint")
    source.add(*({"customer": f"c{i}", "total": i} for i in range(50)))
    rows = source.df.selectExpr("CAST(customer AS STRING) AS key", "to_json(struct(*)) AS value")
    writer = (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", cluster.changelog.kafka.bootstrap_servers)
        .option("topic", cluster.topology.stores["latest"].topic)
    )
    run(writer, tmp_path)
    router = served(cluster)
    for i in range(50):
        answer = httpx.get(f"http://{router}/v1/stores/latest/keys/c{i}")
        assert answer.json()["value"] == {"customer": f"c{i}", "total": i}
    assert httpx.get(f"http://{router}/v1/stores/latest/keys/absent").status_code == 404


def test_sparks_kafka_sink_writes_to_the_right_partitions(spark, sink, cluster, tmp_path):
    """Its windows are read with an age."""
    now_s = int(time.time()) // 60 * 60
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    source = Source(spark, tmp_path / "in", "k string, at timestamp")
    source.add(*({"k": f"k{i}", "at": at} for i in range(20)))
    counts = source.df.selectExpr("k", "window(at, '1 minute') AS w").groupBy("k", "w").count()
    records = sink.kafka_columns(counts, "minutes", key="k")
    options = {
        "kafka.bootstrap.servers": cluster.changelog.kafka.bootstrap_servers,
        "topic": cluster.topology.stores["minutes"].topic,
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    query = records.writeStream.format("kafka").outputMode("update").options(**options).start()
    try:
        sink.heartbeats(query, "minutes")
        url = f"http://{served(cluster)}/v1/stores/minutes/keys"
        for i in range(20):
            parameters = {"max_age_ms": 60_000, "wait_ms": 30_000}
            windows = httpx.get(f"{url}/k{i}/windows", params=parameters, timeout=40).json()["windows"]
            assert [window["value"] for window in windows] == [{"count": 1}]
    finally:
        query.stop()


def test_a_tapped_answer_is_as_old_as_what_its_query_lacks(spark, cluster, kafka_url, tmp_path):
    """Its age begins anew as long as the query has read its topic to the end, not while a record waits there."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    topic, checkpoint = f"t-{secrets.token_hex(4)}", tmp_path / "checkpoint"
    servers = cluster.changelog.kafka.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(10)
    producer = Producer({"bootstrap.servers": servers})

    def produce(key: str) -> int:
        producer.produce(topic, key=key)
        assert producer.flush(20) == 0
        return epoch_ms()

    produce("a")
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    events = spark.readStream.format("kafka").options(**options).load()
    counts = events.selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()
    writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    query = writer.start()
    try:
        url = f"http://{cluster.start_worker()}/v1/stores/counted/keys"

        def is_after(key: str, moment_ms: float) -> bool:
            """Whether all until then is in the answer, and the key."""
            requested_ms = epoch_ms()
            answer = httpx.get(f"{url}/{key}").json()
            age_ms = answer["lag"]["age_ms"] if "value" in answer else None
            return age_ms is not None and requested_ms - age_ms > moment_ms

        def is_not_after(moment_ms: float) -> bool:
            """Until the tap has looked at the topic twice since."""
            assert not is_after("a", moment_ms)
            return epoch_ms() > moment_ms + 2_500

        with running_tap(cluster, checkpoint, tmp_path / "tap.log", "--source", kafka_url):
            wait_until(lambda: is_after("a", 0), "an age", 40)
            begun_ms = epoch_ms()
            wait_until(lambda: is_after("a", begun_ms), "the age of an idle query begins anew")
            query.stop()
            produced_ms = produce("b")
            wait_until(lambda: is_not_after(produced_ms), "the age grows")
            query = writer.start()
            wait_until(lambda: is_after("b", produced_ms), "the age begins anew once it was read", 40)
    finally:
        query.stop()


def test_fill_is_applied_once_and_a_snapshot_deletes(spark, sink, cluster, tmp_path):
    """A snapshot deletes the keys that it lacks."""

    def table(**rows: int) -> Any:
        return spark.createDataFrame(list(rows.items()), "k string, n int")

    source = Source(spark, tmp_path / "in", "k string, n int")
    source.add(*({"k": f"k{i}", "n": 1} for i in range(20)))
    run(sink.write(source.df, "latest", key="k"), tmp_path)
    sink.fill(table(k1=2), "latest", key="k", name="correction")
    assert sink.fill(table(k1=3), "latest", key="k", name="correction", if_written="skip").skipped
    topic = sink.topology.stores["latest"].topic
    assert cluster.changelog.has_completed(topic, "fill-correction")
    url = f"http://{served(cluster)}/v1/stores/latest/keys"
    assert httpx.get(f"{url}/k1").json()["value"] == {"n": 2}
    sink.fill(table(k2=4, new=4), "latest", key="k", name="snapshot", snapshot=True)
    for key, expected in (("k2", {"n": 4}), ("new", {"n": 4}), ("k1", None), ("k19", None)):
        parameters = {"min_position": sink.position("latest"), "wait_ms": 10_000}
        assert httpx.get(f"{url}/{key}", params=parameters).json().get("value") == expected, key


def test_versions_are_valid_from_the_times_of_their_rows(spark, sink, cluster, tmp_path):
    now_s = int(time.time())
    source = Source(spark, tmp_path / "in", "k string, price bigint, at timestamp")
    at = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s - age_s)) for age_s in (3_600, 60)]
    source.add({"k": "a", "price": 1, "at": at[0]}, {"k": "a", "price": 2, "at": at[1]})
    run(sink.write(source.df, "prices", key="k", value=["price"], order_by="at"), tmp_path)
    url = f"http://{served(cluster)}/v1/stores/prices/keys/a"
    wait_until(lambda: httpx.get(url).status_code == 200, "the versions")
    assert httpx.get(url).json()["value"] == {"price": 2}
    assert httpx.get(url, params={"as_of": (now_s - 1_800) * 1000}).json()["value"] == {"price": 1}


@pytest.mark.parametrize(("options", "holds_back"), [({}, False), ({"minoffsetspertrigger": 1_000}, True)])
def test_source_that_holds_records_back_is_recognised(spark, sink, cluster, tmp_path, options, holds_back):
    """However the query is started: its idle heartbeats would count records that are not in the store."""
    from forebay_spark.store_writer import QUERY_RUNS

    topic, servers = sink.topology.stores["counted"].topic, sink._changelog.kafka.spark()
    source = spark.readStream.format("kafka").options(**servers, **options).option("subscribe", topic).load()
    other = Source(spark, tmp_path / "in", "k string, n int")
    both = source.selectExpr("CAST(key AS STRING) AS k", "1 AS n").union(other.df)
    ours = sink.write(both, "latest", key="k").option("checkpointLocation", str(tmp_path / "ours")).start()
    theirs = both.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "theirs")).start()
    try:
        sink.heartbeats(theirs, "latest", writer="theirs")
        for query in (ours, theirs):
            assert QUERY_RUNS[str(query.id)].holds_records_back is holds_back
    finally:
        ours.stop()
        theirs.stop()


def test_no_secret_of_the_connection_is_in_what_spark_shows(spark, tmp_path):
    from forebay_changelog.kafka.changelog import KafkaChangelog
    from forebay_spark.kafka_destination import KafkaDestination

    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n")
    files = (
        f"ssl.ca.location=/ca.pem&ssl.certificate.location={key}&ssl.key.location={key}&ssl.key.password=secret"
    )
    changelog = KafkaChangelog(
        f"kafka://h:1?security.protocol=SASL_SSL&sasl.mechanism=PLAIN&sasl.username=u&{files}"
    )
    KafkaDestination(changelog).check(spark)
    jvm = spark._jvm
    options = jvm.java.util.HashMap()
    for name, value in changelog.kafka.spark().items():
        options.put(name, value)
    command = jvm.org.apache.spark.sql.execution.datasources.SaveIntoDataSourceCommand(
        spark.range(1)._jdf.queryExecution().logical(),
        None,
        jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(options),
        jvm.org.apache.spark.sql.SaveMode.Append,
    )
    shown = command.simpleString(100)
    assert "kafka.ssl.keystore.key" in shown
    assert "secret" not in shown


def test_speculation_is_refused(spark, jars, sink, tmp_path):
    spark.stop()
    speculating = session(jars=jars, speculation="True")
    try:
        source = Source(speculating, tmp_path / "in", "k string, n bigint")
        with pytest.raises(SinkError, match=r"spark\.speculation=false"):
            sink.write(source.df, "latest", key="k")
    finally:
        speculating.stop()
