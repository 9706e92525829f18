import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from forebay.errors import SettingError
from forebay.record_orders import with_order
from forebay.store_spec import StoreSpec
from forebay_changelog.reading_command import changelog
from forebay_changelog.record_documents import record_document, record_json, record_line
from forebay_changelog.record_headers import heartbeat_key
from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.support.cluster import heed_interrupts, wait_until


def options(cluster) -> list[str]:
    return ["--topology", str(cluster.topology_path), "--changelog", cluster.changelog.url]


def printed(cluster, command: str, *arguments: str) -> str:
    outcome = CliRunner().invoke(changelog, [command, *options(cluster), *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def tailed(cluster, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(cluster, "tail", *arguments, "--json").splitlines()]


def test_tail_prints_records_and_stat_counts_them(either_cluster):
    cluster, began_ms = either_cluster, int(time.time() * 1000)
    cluster.put("numbers", {n.to_bytes(8, "big"): b"%d" % n for n in range(40)})
    cluster.put("numbers", {(3).to_bytes(8, "big"): None}, writer="other")
    everything = tailed(cluster, "numbers", "--from-beginning")
    assert {record["key"]: record["value"] for record in everything if "value" in record} == {
        n: n for n in range(40)
    }
    [deleted] = [record for record in everything if "tombstone" in record]
    assert deleted["key"] == 3
    by_partition = [[record for record in everything if record["partition"] == n] for n in (0, 1)]
    assert everything == by_partition[0] + by_partition[1]
    beats = [record["heartbeat"] for record in by_partition[0] if "heartbeat" in record]
    assert [beat["writer"] for beat in beats] == ["numbers", "other"]
    # Offsets may be missing between them.
    assert tailed(cluster, "numbers", "--partition", "0", "--last", "12") == by_partition[0][-12:]
    [log] = json.loads(printed(cluster, "stat", "numbers", "--json"))["logs"]
    assert (sum(part["records"] for part in log["partitions"]), log["store"]) == (41, "numbers")
    for part, records in zip(log["partitions"], by_partition, strict=True):
        assert part["records"] + part["heartbeats"] == len(records)
        assert (part["beginning"], part["heartbeats"]) == (records[0]["offset"], 2)
        assert part["end_offset"] > records[-1]["offset"]
        assert began_ms <= part["last_timestamp_ms"] <= time.time() * 1000
        assert [writer["writer"] for writer in part["writers"]] == ["numbers", "other"]
        assert all(began_ms <= writer["as_of_ms"] and writer["age_ms"] < 60_000 for writer in part["writers"])


def test_tail_follow_prints_until_interrupted(cluster):
    cluster.put("counts", {b"before": b"0"})
    command = [sys.executable, "-m", "forebay", "changelog", "tail", *options(cluster)]
    with subprocess.Popen(
        [*command, "counts", "--last", "1", "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as tail:
        assert tail.stdout is not None
        for _ in range(4):
            assert "heartbeat of counts: as of " in tail.stdout.readline()
        cluster.put("counts", {b"after": b'{"n": 1}'})
        partition = cluster.partition(cluster.topology.stores["counts"], b"after")
        line = next(line for line in tail.stdout if "heartbeat" not in line)
        assert line.startswith(f"{partition}  ")
        assert line.endswith('Z  "after"  {"n": 1}\n')
        tail.send_signal(signal.SIGINT)
        assert tail.wait(10) == 0


def test_tail_last_reaches_beyond_compacted_offsets(cluster):
    spec = cluster.topology.stores["counts"]
    for key in (b"b", *[b"a"] * 9):
        cluster.put("counts", {key: b"1"})
    partition = cluster.partition(spec, b"b")
    assert partition == cluster.partition(spec, b"a")
    cluster.changelog.compact(spec, CompactionLimits(0, 0))
    left = tailed(cluster, "counts", "--partition", str(partition), "--last", "3")
    assert [record.get("key") for record in left] == ["b", "a", None]


def test_conflicting_options_are_refused(cluster):
    """`stat` without `--json` prints tables."""
    cluster.put("counts", {b"a": b"1"})
    cluster.put("counts", {}, writer="gone")
    cluster.changelog.retire_writer("test-counts-changelog", "gone")
    assert tailed(cluster, "counts", "--last", "1")[0]["heartbeat"] == {"writer": "gone"}
    with pytest.raises(SettingError, match="has 2 partitions"):
        printed(cluster, "tail", "numbers", "--partition", "2")
    with pytest.raises(SettingError, match="leave out"):
        printed(cluster, "tail", "numbers", "--from-beginning", "--last", "1")
    assert printed(cluster, "tail", "counts", "--last", "0") == ""
    shown = printed(cluster, "stat", "numbers", "counts")
    assert "test-numbers-changelog" in shown
    assert re.search(r"│ counts \d+ ms", shown)


@pytest.mark.kafka
def test_tail_begins_at_the_log_start_after_deletion(kafka_cluster):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    cluster = kafka_cluster
    cluster.put("counts", {b"%d" % n: b"1" for n in range(40)})
    topic = cluster.topology.stores["counts"].topic
    end = len(tailed(cluster, "counts", "--partition", "0", "--from-beginning"))
    admin = AdminClient(cluster.changelog.kafka.librdkafka())
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    [altered] = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values()
    altered.result(10)
    [deleted] = admin.delete_records([TopicPartition(topic, 0, end)]).values()
    assert deleted.result(10).low_watermark == end
    wait_until(lambda: len(tailed(cluster, "counts", "--partition", "0", "--last", "3")) < 3, "the deletion")
    [log] = json.loads(printed(cluster, "stat", "counts", "--partition", "0", "--json"))["logs"]
    assert log["partitions"][0]["beginning"] == end


def spec(kind: str = "key-value", **fields: Any) -> StoreSpec:
    return StoreSpec("s", kind, "string", "json", "murmur2", "t", 1, **fields)


def test_numbers_stay_as_they_are_and_a_document_takes_one_line():
    document = record_document(spec(), 0, (5, b"a", b'{\n "n": 12345678901234567.12,\n "m": 1e400}', 7, False))
    text = record_json(document)
    assert text.startswith('{"partition": 0, "offset": 5, "timestamp_ms": 7, "key": "a", "value": {')
    assert "12345678901234567.12" in text
    assert "1e400" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("kind", "key", "times"),
    [
        ("window", b"a" + (5000).to_bytes(8, "big"), {"start_ms": 5000, "end_ms": 6000}),
        (
            "session",
            b"a" + b"".join(n.to_bytes(8, "big") for n in (5000, 4000)),
            {"start_ms": 4000, "end_ms": 5000},
        ),
        ("versioned", b"a", {"valid_from_ms": 7}),
    ],
)
def test_times_are_named_as_in_answers(kind, key, times):
    document = record_document(spec(kind, window_size_ms=1000), 0, (0, key, b"1", 7, False))
    assert json.loads(record_json(document)) == {
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 7,
        "key": "a",
        **times,
        "value": 1,
    }


def test_an_order_is_shown_beside_its_key():
    document = record_document(spec(latest_by="lsn"), 0, (0, with_order(b"a", -5), None, 7, False))
    assert (document["key"], document["order"]) == ('"a"', -5)
    assert record_line(document).endswith('"a" order=-5  (tombstone)')


def test_what_no_codec_reads_is_base64_beside_the_fault():
    document = record_document(spec(), 0, (0, b"\xff", b"{", 7, False))
    assert (document["key_base64"], document["value_base64"]) == ("/w==", "ew==")
    assert document["fault"]
    assert "not readable" in record_line(document)
    document = record_document(replace(spec(), value="avro"), 0, (0, b"a", b"\0\0\0\0\7\2", 7, False))
    assert (document["value_base64"], "schema 7" in document["fault"]) == ("AAAAAAcC", True)
    document = record_document(spec("window", window_size_ms=1), 0, (0, b"short", None, 7, False))
    assert document["tombstone"]
    assert "no room for its timestamps" in document["fault"]


def test_a_heartbeat_that_is_none_is_shown_with_what_is_wrong():
    document = record_document(spec(), 0, (0, heartbeat_key("w"), b"{}", 7, True))
    assert "is not a heartbeat" in record_line(document)
