"""Workers and routers over a real broker: it stops, is killed and compacts, and others write to it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient

from examples.broker import ROOT, Broker
from examples.jvm import java
from forebay.task_ids import TopicPartition
from tests.support.cluster import Cluster, restore_processes, running_cluster, wait_until
from tests.support.kafka_topics import configure

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

KEYS = 200


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, kafka=broker.url) as cluster:
        yield cluster


def read(address: str, key: str, **bounds: int | str) -> httpx.Response:
    return httpx.get(f"http://{address}/v1/stores/counts/keys/{key}", params=bounds, timeout=10)


def put_all(cluster: Cluster, value: str) -> None:
    cluster.put("counts", {b"k%d" % i: f'"{value} {i}"'.encode() for i in range(KEYS)})


def values(address: str, keys: list[str]) -> list[Any]:
    """The keys' values, or what was said instead of one."""
    answer = httpx.post(f"http://{address}/v1/stores/counts/batch-get", json={"keys": keys}).json()
    return [row["value"] if "value" in row else row["problem"]["type"] for row in answer["results"]]


def shows_all(address: str, value: str) -> bool:
    return values(address, [f"k{i}" for i in range(KEYS)]) == [f"{value} {i}" for i in range(KEYS)]


def applied(address: str) -> float:
    """How many records of the store a worker has applied since it started."""
    lines = httpx.get(f"http://{address}/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("forebay_records_applied_total{") and '"counts"' in line]
    return sum(float(line.split()[-1]) for line in counted)


def status(address: str) -> dict[str, Any]:
    return dict(httpx.get(f"http://{address}/v1/status").json())


def test_broker_outage_stops_no_read_and_loses_nothing(cluster, broker):
    """No record is applied twice after the outage, and lag grows during it."""
    put_all(cluster, "old")
    first, second = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    held = applied(first)

    broker.stop()
    for address in (first, second, router):
        assert shows_all(address, "old")
    # The log's present content is unknown, and the answers say so.
    wait_until(lambda: read(router, "k1").json()["lag"]["time_lag_ms"] > 3_000, "the lag growing")
    for address in (first, second, router):
        refused = read(address, "k1", max_time_lag_ms=2_000)
        assert (refused.status_code, refused.json()["lag"]["time_lag_ms"] > 2_000) == (412, True)
    wait_until(lambda: read(first, "k1").headers["forebay-role"] == "standby", "the lease running out")

    # One is killed and comes back before the broker: it serves what is on its disk.
    cluster.kill(second)
    cluster.start_worker(second, ready=False)
    wait_until(lambda: on_disk(second) and shows_all(second, "old"), "all answers from disk")
    assert read(second, "k1").headers["forebay-role"] == "standby"
    assert status(second)["state"] == "joining"
    assert httpx.get(f"http://{second}/readyz").status_code == 503
    assert cluster.workers[first].poll() is None

    broker.start()
    cluster.wait_settled(router)
    put_all(cluster, "new")
    for address in (first, second, router):
        wait_until(lambda address=address: shows_all(address, "new"), f"{address} catching up")
        # The ends are asked for over a connection of their own, which may be back later than the rows.
        wait_until(
            lambda address=address: read(address, "k1", max_time_lag_ms=5_000).status_code == 200,
            f"{address} knowing the end",
        )
    # Every row once, and the heartbeat of each of the four partitions, which comes behind the rows.
    wait_until(lambda: applied(first) - held >= KEYS + 4, "the heartbeats being applied")
    assert applied(first) - held == KEYS + 4
    assert "Traceback" not in cluster.logs()


def on_disk(address: str) -> bool:
    try:
        return read(address, "k1").status_code == 200
    except httpx.TransportError:
        return False


def test_recreated_topic_is_read_after_a_leader_change(cluster, broker):
    put_all(cluster, "old")
    worker = cluster.start_worker()
    broker.kill()
    broker.start()
    put_all(cluster, "newer")
    wait_until(lambda: shows_all(worker, "newer"), "what was written after the restart", 60)
    cluster.changelog.reset(cluster.topology.stores["counts"])
    put_all(cluster, "new")
    wait_until(lambda: shows_all(worker, "new"), "what the new topic holds", 60)
    wait_until(lambda: read(worker, "absent").status_code == 404, "a miss")


@pytest.mark.parametrize("grown", [False, True], ids=["shorter", "grown past the worker again"])
def test_a_log_that_lost_its_end_is_read_anew(cluster, broker, tmp_path, grown):
    spec = cluster.topology.stores["counts"]
    logs, kept = broker.directory / "logs", tmp_path / "kept"
    partition = f"{spec.topic}-{cluster.partition(spec, b'lost')}"
    worker = cluster.start_worker()
    put_all(cluster, "old")
    broker.stop()
    shutil.copytree(logs / partition, kept)
    broker.start()
    produce(cluster, ["lost"], b'"lost"')
    wait_until(lambda: read(worker, "lost").status_code == 200, "what is then lost", 60)
    # As when a broker that had fallen behind is elected, the others being gone for good.
    broker.kill()
    shutil.rmtree(logs / partition)
    shutil.copytree(kept, logs / partition)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (logs / name).unlink(missing_ok=True)
    if grown:
        cluster.kill(worker, signal.SIGSTOP)
    broker.start()
    if grown:
        produce(cluster, [f"k{i}" for i in range(KEYS)], b'"new"')
        cluster.kill(worker, signal.SIGCONT)
    wait_until(lambda: read(worker, "lost").status_code == 404, "the replica being rebuilt", 60)
    wait_until(
        lambda: read(worker, "k0").json().get("value") == ("new" if grown else "old 0"), "the log's content"
    )


def produce(cluster: Cluster, keys: list[str], value: bytes) -> None:
    """With a producer of its own, that knows nothing of what the log has lost."""
    producer = Producer(cluster.changelog.kafka.librdkafka(partitioner="murmur2_random"))
    for key in keys:
        producer.produce(cluster.topology.stores["counts"].topic, key=key.encode(), value=value)
    assert producer.flush(30) == 0


def test_worker_started_before_the_broker_creates_topics(broker, tmp_path):
    """It serves once the broker is there."""
    with running_cluster(tmp_path, kafka=broker.url) as cluster:
        topic = cluster.topology.stores["counts"].topic
        admin = AdminClient(cluster.changelog.kafka.librdkafka())
        admin.delete_topics([topic])[topic].result(10)
        broker.stop()
        address = cluster.start_worker(ready=False)
        wait_until(lambda: alive(address), "the worker being up")
        assert read(address, "k1").status_code == 421
        broker.start()
        cluster.wait_ready(address)
        put_all(cluster, "value")
        wait_until(lambda: shows_all(address, "value"), "the records")


def alive(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/v1/status").status_code == 200
    except httpx.TransportError:
        return False


def test_a_broker_killed_during_a_rebalance_costs_no_key(cluster, broker):
    put_all(cluster, "value")
    first = cluster.start_worker()
    cluster.start_worker(ready=False)
    router = cluster.start_router(ready=False)
    wait_until(lambda: alive(list(cluster.workers)[1]), "the second worker being up")
    broker.kill()
    assert shows_all(first, "value")
    broker.start()
    cluster.wait_settled(router)
    assert shows_all(router, "value")
    assert shows_all(list(cluster.workers)[1], "value")


COMPACTED_AT_ONCE = {
    "segment_ms": "200",
    "min_cleanable_dirty_ratio": "0.001",
    "min_compaction_lag_ms": "0",
}


def test_bulk_restore_survives_concurrent_compaction(broker, tmp_path):
    """The restored content is what was written last."""
    keys, rounds = 20_000, 5
    with running_cluster(tmp_path, kafka=broker.url, topology_text=TOPOLOGY_OF_ONE.format(more="")) as cluster:
        topic = cluster.topology.stores["counts"].topic
        files = broker.directory / "logs" / f"{topic}-0"
        producer = Producer(cluster.changelog.kafka.librdkafka(linger_ms=5, queue_buffering_max_messages=300_000))

        def write(number: int) -> None:
            for i in range(keys):
                value = None if i % 5 == 0 and number == rounds - 1 else b'"%d %d"' % (number, i)
                producer.produce(topic, key=b"k%d" % i, value=value, partition=0)
            assert producer.flush(30) == 0

        def size() -> int:
            return sum(path.stat().st_size for path in files.glob("*.log") if path.exists())

        for number in range(rounds - 1):
            write(number)
        address = cluster.start_worker(None, "--restore-processes", "1", ready=False)
        pid = cluster.workers[address].pid
        wait_until(lambda: restore_processes(pid), "a restore process")
        [child] = restore_processes(pid)
        # It has read some of the log by now, or nothing yet.
        os.kill(child, signal.SIGSTOP)
        configure(cluster, "counts", **COMPACTED_AT_ONCE)
        full = size()
        write(rounds - 1)
        # What is older than the newest segment, which the next record rolls.
        wait_until(lambda: produce(cluster, ["last"], b'"last"') or size() < full / 2, "compaction", 60)
        os.kill(child, signal.SIGCONT)
        wait_until(lambda: status_of(address, "counts")["record_lag"] == 0, "the end of the restore", 60)
        assert "restored in bulk" in cluster.logs()
        assert applied(address) < keys * rounds
        numbers = range(0, keys, 97)
        expected = ["urn:forebay:problem:unknown-key" if i % 5 == 0 else f"{rounds - 1} {i}" for i in numbers]
        wait_until(lambda: values(address, [f"k{i}" for i in numbers]) == expected, "what was written last")


def status_of(address: str, store: str) -> dict[str, Any]:
    return next(row for row in httpx.get(f"http://{address}/v1/lags").json()["lags"] if row["store"] == store)


TOPOLOGY_OF_ONE = """
application_id = "test"

[[subtopology]]
name = "counts"
partitions = 1

[[subtopology.store]]
name = "counts"
{more}
"""


def test_other_producers_murmur2_keys_are_found(kafka_cluster):
    """Keys that librdkafka and Kafka's own producer wrote are in the expected partitions."""
    cluster = kafka_cluster
    topic = cluster.topology.stores["counts"].topic
    servers = cluster.changelog.kafka.bootstrap_servers
    librdkafka = Producer(cluster.changelog.kafka.librdkafka(partitioner="murmur2_random"))
    for i in range(KEYS):
        librdkafka.produce(topic, key=b"c%d" % i, value=b"%d" % i)
    assert librdkafka.flush(20) == 0
    # Kafka's own tool, around Kafka's own producer.
    subprocess.run([ROOT / "scripts" / "jars" / "fetch", "kafka"], check=True)
    tool = [java(), "-cp", f"{ROOT}/.jars/kafka/*", "org.apache.kafka.tools.ConsoleProducer"]
    tool += ["--bootstrap-server", servers, "--topic", topic]
    tool += ["--property", "parse.key=true", "--property", "key.separator=="]
    lines = "".join(f"j{i}={i}\n" for i in range(KEYS))
    produced = subprocess.run(tool, input=lines, capture_output=True, text=True)
    assert produced.returncode == 0, produced.stderr
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    for first in "cj":
        assert values(router, [f"{first}{i}" for i in range(KEYS)]) == list(range(KEYS))
    assert read(router, "c-1").status_code == 404


def test_keys_of_another_partitioner_are_no_silent_misses(kafka_cluster):
    """A miss is `partitioner-mismatch`."""
    cluster = kafka_cluster
    topic = cluster.topology.stores["counts"].topic
    producer = Producer(cluster.changelog.kafka.librdkafka(partitioner="consistent_random"))
    for i in range(KEYS):
        producer.produce(topic, key=b"c%d" % i, value=b"%d" % i)
    assert producer.flush(20) == 0
    cluster.start_worker()
    router = cluster.start_router()
    found = values(router, [f"c{i}" for i in range(KEYS)])
    refusal = "urn:forebay:problem:partitioner-mismatch"
    assert {refusal} < set(found) <= {refusal, *range(KEYS)}
    missed = read(router, f"c{found.index(refusal)}")
    assert (missed.status_code, missed.json()["type"]) == (503, refusal)


def test_external_store_stops_at_a_bad_record(kafka_url, tmp_path):
    """It goes on once it may skip such records, which are counted."""
    text = TOPOLOGY_OF_ONE.format(more="external = true\naccept_uncompacted = true")
    with running_cluster(tmp_path, kafka=kafka_url, topology_text=text) as cluster:
        # Into a compacted topic the broker lets no record without a key.
        configure(cluster, "counts", cleanup_policy="delete")
        topic = cluster.topology.stores["counts"].topic
        producer = Producer(cluster.changelog.kafka.librdkafka())
        for key, value in ((b"a", b"1"), (None, b"2"), (b"b", b"NaN"), (b"c", b"3")):
            producer.produce(topic, key=key, value=value, partition=0)
        assert producer.flush(20) == 0
        address = cluster.start_worker(ready=False)
        wait_until(lambda: alive(address) and failure(address), "the stop")
        assert f"The record at offset 1 of '{topic}', partition 0" in failure(address)
        assert "it has no key" in failure(address)
        assert read(address, "a").json()["value"] == 1
        assert read(address, "c").status_code == 503

        cluster.kill(address, signal.SIGTERM)
        cluster.topology_path.write_text(cluster.topology_text + 'on_bad_value = "skip"\n')
        cluster.start_worker(address)
        wait_until(lambda: read(address, "c").status_code == 200, "the rest")
        assert read(address, "b").status_code == 404
        skipped = [
            line for line in httpx.get(f"http://{address}/metrics").text.splitlines() if "skipped_total{" in line
        ]
        assert [line.split()[-1] for line in skipped] == ["2.0"]


def metric(address: str, name: str, **labels: str) -> float:
    shown = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    lines = httpx.get(f"http://{address}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{{shown}}}"))


def test_open_transaction_shows_as_time_lag(kafka_cluster):
    """The transaction is of another producer, and a finding names its partition."""
    cluster = kafka_cluster
    put_all(cluster, "old")
    spec = cluster.topology.stores["counts"]
    address = cluster.start_worker()
    held, partition = "k1", spec.partition_of(b"k1")
    other = next(f"k{i}" for i in range(KEYS) if spec.partition_of(b"k%d" % i) != partition)
    producer = Producer(cluster.changelog.kafka.librdkafka(transactional_id=f"hung-{spec.topic}"))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(spec.topic, key=held, value=b'"new"', partition=partition)
    assert producer.flush(10) == 0

    wait_until(lambda: read(address, held, max_time_lag_ms=1_000).status_code == 412, "the bound being passed")
    refused = read(address, held, max_time_lag_ms=1_000).json()["lag"]
    assert refused["time_lag_ms"] > 1_000
    assert refused["record_lag"] == 0
    assert read(address, held, max_record_lag=0, require_active="true").json()["value"] == "old 1"
    assert read(address, other, max_time_lag_ms=1_000).status_code == 200
    row = next(
        row for row in status(address)["tasks"] if (row["store"], row["partition"]) == ("counts", partition)
    )
    assert row["high_watermark"] - row["end_offset"] == row["open_transaction_records"] == 1
    labels = {"store": "counts", "partition": str(partition)}
    assert metric(address, "forebay_open_transaction_seconds", **labels) > 0.9
    assert metric(address, "forebay_open_transaction_seconds", **labels | {"store": "pairs"}) == 0
    # It takes the role, and is ready, whatever it cannot read yet.
    cluster.kill(address, signal.SIGTERM)
    cluster.start_worker(address)
    wait_until(lambda: read(address, held, require_active="true").status_code == 200, "the role")
    assert read(address, held, max_time_lag_ms=1_000).status_code == 412
    wait_until(lambda: open_transactions(address), "the finding")
    [finding] = open_transactions(address)
    assert (finding["severity"], finding["store"], finding["partitions"]) == ("warning", "counts", [partition])
    assert "a transaction has been open" in finding["detail"]
    assert f"describe-producers --topic {spec.topic} --partition {partition}" in finding["remedy"]

    producer.commit_transaction(10)
    wait_until(lambda: read(address, held, max_time_lag_ms=1_000).status_code == 200, "the transaction's end")
    assert read(address, held).json()["value"] == "new"
    wait_until(lambda: not open_transactions(address), "the end of the finding")


def open_transactions(address: str) -> list[dict[str, Any]]:
    found = httpx.get(f"http://{address}/v1/health").json()["findings"]
    return [one for one in found if one["kind"] == "transaction-open"]


def failure(address: str) -> str:
    return next((row["failure"] for row in status(address)["tasks"] if "failure" in row), "")


def forebay(cluster: Cluster, *arguments: str, topology: Path | None = None) -> subprocess.CompletedProcess[str]:
    group, name, *rest = arguments
    common = ["--topology", str(topology or cluster.topology_path), "--changelog", cluster.changelog.url]
    command = [sys.executable, "-m", "forebay", group, name, *common, *rest]
    environment = {**os.environ, "COLUMNS": "300"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_topics_are_made_and_refused_by_command(kafka_cluster):
    made = kafka_cluster.directory / "made.toml"
    own = f"{kafka_cluster.topology.application_id}-made"
    made.write_text(TOPOLOGY_OF_ONE.format(more="").replace('"test"', f'"{own}"'))
    reported = forebay(kafka_cluster, "topology", "apply", topology=made).stdout
    assert f"counts: {own}-counts-changelog, 1 partition, created" in reported
    assert f"the workers' assignments: {own}-assignments, 1 partition" in reported
    assert kafka_cluster.changelog.end_offsets([TopicPartition(f"{own}-assignments", 0)])
    assert kafka_cluster.changelog.end_offsets([TopicPartition(f"{own}-counts-changelog", 0)])
    made.write_text(made.read_text().replace("partitions = 1", "partitions = 2"))
    refused = forebay(kafka_cluster, "topology", "apply", topology=made)
    assert refused.returncode != 0
    assert "has 1 partitions, the topology has 2" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_changelog_commands_list_reset_and_retire(kafka_cluster):
    cluster = kafka_cluster
    put_all(cluster, "old")
    cluster.put("counts", {b"k1": b'"gone"'}, writer="gone")
    address = cluster.start_worker()
    wait_until(lambda: read(address, "k1").json()["lag"]["age_ms"] is not None, "the heartbeats")
    topic = cluster.topology.stores["counts"].topic
    listed = forebay(cluster, "changelog", "ls").stdout
    before = cluster.changelog.identity(topic)
    assert topic in listed
    assert before in listed

    assert "gone no longer counts" in forebay(cluster, "changelog", "retire-writer", "counts", "gone").stdout
    cluster.changelog.retire_writer(topic, "counts")
    wait_until(lambda: read(address, "k1").json()["lag"]["age_ms"] is None, "the writers' retirement")

    assert "counts is now empty" in forebay(cluster, "changelog", "reset", "counts", "--yes").stdout
    assert cluster.changelog.identity(topic) != before
    wait_until(lambda: "Nobody has written" in read(address, "k1").text, "the emptied log")
    compacted = forebay(cluster, "changelog", "compact", "counts")
    assert "on Kafka, see the topic's cleanup.policy" in compacted.stderr
    assert compacted.returncode != 0


def test_replicas_agree_after_records_were_deleted_from_the_log(cluster):
    spec = cluster.topology.stores["counts"]
    ends = cluster.put("counts", {b"k%d" % i: b'"old"' for i in range(KEYS)})
    cluster.put("counts", {b"k0": b'"new"'})
    first = cluster.start_worker()
    wait_until(lambda: values(first, ["k0"]) == ["new"], "the records")
    partition = cluster.partition(spec, b"k0")
    admin = AdminClient(cluster.changelog.kafka.librdkafka())
    # Kafka deletes from no other topics; this policy by itself deletes nothing.
    configure(cluster, "counts", cleanup_policy="compact,delete", retention_ms="-1")
    deleted_to = KafkaTopicPartition(spec.topic, partition, ends[partition])
    cluster.kill(first, signal.SIGTERM)
    admin.delete_records([deleted_to])[deleted_to].result(10)
    keys = [f"k{i}" for i in range(KEYS) if cluster.partition(spec, b"k%d" % i) == partition]
    cluster.start_worker(first, "--apply-records-per-second", "5", ready=False)
    cluster.wait_alive(first)
    second = cluster.start_worker(ready=False)
    cluster.wait_alive(second)

    def answers(address: str) -> list[Any]:
        found = [read(address, key) for key in keys]
        for answer in found:
            # What is served until the rebuild is done, nobody knows how far that is behind.
            assert answer.json().get("value") != "old" or answer.json()["lag"]["record_lag"] is None
        return [(answer.status_code, answer.json().get("value")) for answer in found]

    gone = [(200, "new") if key == "k0" else (404, None) for key in keys]
    wait_until(lambda: answers(first) == answers(second) == gone, "equal answers", 40)


def test_a_policy_that_changes_is_a_finding_and_stops_no_start(cluster):
    put_all(cluster, "old")
    worker = cluster.start_worker()
    configure(cluster, "counts", cleanup_policy="delete", retention_ms="3600000")

    def finding() -> dict[str, Any]:
        found = cluster.get(worker, "/v1/health")["findings"]
        return next((one for one in found if one["kind"] == "topic-loses-records"), {})

    wait_until(finding, "the finding")
    assert "cleanup.policy=compact" in finding()["remedy"]
    cluster.kill(worker, signal.SIGTERM)
    cluster.start_worker(worker)
    assert shows_all(worker, "old")
    wait_until(finding, "the finding after a restart")
