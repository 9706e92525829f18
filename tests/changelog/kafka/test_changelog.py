"""The Kafka changelog on a real broker: what it creates, what it refuses, and what its readers get."""

import gc
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import IsolationLevel, KafkaError, Uuid
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from forebay.errors import (
    BatchConflict,
    ChangelogUnreachable,
    PartitionCountMismatch,
    TopicMissing,
    TopicRefused,
)
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Heartbeat, Wake
from forebay_changelog.kafka.admin_polls import ask_offsets
from forebay_changelog.kafka.changelog import KafkaChangelog
from forebay_changelog.kafka.client_close import Admin
from forebay_changelog.kafka.fetcher import Fetched, Fetcher
from forebay_changelog.kafka.transient_errors import passes
from forebay_changelog.record_headers import HEARTBEAT_HEADER, VALID_FROM_HEADER, heartbeat_key
from tests.support.cluster import free_port, wait_until
from tests.support.kafka_topics import Reader, Writer, end_of_all, made, spec

pytestmark = pytest.mark.kafka

DAY_MS = 86_400_000
COMPACTED_AT_ONCE = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "100",
}

TAIL_AND_REPLAY = pytest.mark.parametrize("replay", [False, True], ids=["tail", "replay"])

WINDOWS = {"kind": "window", "window_size_ms": 60_000, "retention_ms": 600_000}
VERSIONS = {"kind": "versioned", "history_retention_ms": 600_000}


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (spec(), {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}),
        (
            spec("window", window_size_ms=1000, retention_ms=5 * DAY_MS),
            {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(6 * DAY_MS),
                "min.compaction.lag.ms": "3600000",
            },
        ),
        (
            spec("session", gap_ms=1000, retention_ms=1000),
            {"cleanup.policy": "compact,delete", "retention.ms": str(DAY_MS + 1000)},
        ),
        (
            spec(ttl_ms=2 * DAY_MS),
            {
                "cleanup.policy": "compact,delete",
                "retention.ms": str(3 * DAY_MS),
                "segment.ms": str(DAY_MS // 2),
                "retention.bytes": "-1",
            },
        ),
        (spec(ttl_ms=40 * DAY_MS), {"retention.ms": str(41 * DAY_MS), "segment.ms": str(DAY_MS)}),
        (
            spec("versioned", history_retention_ms=5 * DAY_MS),
            {"cleanup.policy": "compact", "min.compaction.lag.ms": str(6 * DAY_MS)},
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, StoreSpec) else "",
)
def test_a_topic_is_made_as_its_kind_of_store_needs_it(changelog, admin, store, expected):
    changelog.ensure(store)
    changelog.ensure(store)
    resource = ConfigResource(ConfigResource.Type.TOPIC, store.topic)
    found = admin.describe_configs([resource])[resource].result(10)
    assert {name: found[name].value for name in expected} == expected


@pytest.mark.parametrize(
    "name",
    [
        "OFFSET_NOT_AVAILABLE",
        "_DESTROY",
        "NOT_LEADER_FOR_PARTITION",
        "UNKNOWN_LEADER_EPOCH",
        "FENCED_LEADER_EPOCH",
        "NOT_COORDINATOR",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_CONTROLLER",
        "NETWORK_EXCEPTION",
        "KAFKA_STORAGE_ERROR",
    ],
)
def test_errors_that_kafka_calls_retriable_are_transient(name):
    """As of a broker that has just started and does not know yet which of its partitions it leads."""
    assert passes(KafkaError(getattr(KafkaError, name)))


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "MSG_SIZE_TOO_LARGE", "INVALID_CONFIG"])
def test_errors_that_trying_again_does_not_help_are_lasting(name):
    assert not passes(KafkaError(getattr(KafkaError, name)))


def test_missing_topic_is_named_with_the_remedy(changelog):
    """Where no topic may be created, the error names `topology apply`."""
    store = spec()
    with pytest.raises(TopicMissing, match="topology apply") as caught:
        changelog.ensure(store, create=False)
    assert repr(store.topic) in str(caught.value)
    with pytest.raises(TopicMissing, match=store.topic):
        changelog.identity(store.topic)


def test_another_number_of_partitions_is_refused(changelog, admin):
    store = spec(partitions=4)
    admin.create_topics([NewTopic(store.topic, 3)])[store.topic].result(10)
    with pytest.raises(PartitionCountMismatch, match=r"has 3 partitions, the topology has 4.*partitions = 3"):
        changelog.ensure(store)


def test_delete_policy_is_refused_unless_accepted(changelog, admin):
    """A topic that deletes records which a rebuild needs is taken with `accept_uncompacted` only."""
    store = spec()
    made(admin, store, {"cleanup.policy": "delete"})
    with pytest.raises(TopicRefused, match=r"cleanup\.policy=delete.*accept_uncompacted = true"):
        changelog.ensure(store)
    accepting = StoreSpec("s", "key-value", "string", "json", "murmur2", store.topic, 1, accept_uncompacted=True)
    changelog.ensure(accepting)


@pytest.mark.parametrize(
    ("fields", "config", "message"),
    [
        ({}, {"cleanup.policy": "compact,delete"}, r"retention\.ms=604800000"),
        (
            {},
            {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "9"},
            "retention.bytes=9",
        ),
        ({}, {"cleanup.policy": "delete", "retention.ms": "-1"}, None),
        (WINDOWS, {"cleanup.policy": "compact,delete", "retention.ms": "1000"}, r"Set retention\.ms=87000000"),
        (WINDOWS, {"cleanup.policy": "compact,delete", "retention.ms": "600000"}, None),
        (VERSIONS, {"cleanup.policy": "compact"}, r"min\.compaction\.lag\.ms=0.*Set it to 87000000"),
        (VERSIONS, {"cleanup.policy": "compact", "min.compaction.lag.ms": "600000"}, None),
    ],
)
def test_topic_config_that_breaks_a_rebuild_is_refused(changelog, admin, fields, config, message):
    """A store rebuilt from the topic would lack records that its retention or history promises."""
    store = spec(**fields)
    made(admin, store, config)
    if message is None:
        changelog.ensure(store)
    else:
        with pytest.raises(TopicRefused, match=message):
            changelog.ensure(store)
        changelog.ensure(replace(store, accept_uncompacted=True))


def test_a_topic_that_does_not_forget_gets_the_retention_of_its_store(changelog, admin):
    """What would be lost by a shorter one is refused until it is set, too."""
    store = spec(ttl_ms=2 * DAY_MS)
    made(admin, store, {"cleanup.policy": "compact", "retention.bytes": "1000000"})
    with pytest.raises(TopicRefused, match=r"keeps values of 's' that have expired.*forebay topology apply"):
        changelog.ensure(store)
    # Whose topic it is, decides.
    changelog.ensure(replace(store, external=True))
    assert changelog.forget_expired(replace(store, external=True)) is False
    assert changelog.forget_expired(store) is True
    wait_until(lambda: changelog.forget_expired(store) is False, "the new configuration")
    changelog.ensure(store)
    longer = replace(store, ttl_ms=4 * DAY_MS)
    with pytest.raises(TopicRefused, match=rf"Set retention\.ms={5 * DAY_MS}.*or a shorter ttl_ms"):
        changelog.ensure(longer)
    assert changelog.forget_expired(longer) is True
    wait_until(lambda: changelog.forget_expired(longer) is False, "the longer retention")
    changelog.ensure(longer)
    # One that is longer than it must be stays.
    assert changelog.forget_expired(store) is False


def test_short_tombstone_retention_is_refused(changelog, admin):
    """A short `delete.retention.ms` is refused unless the topic is not compacted."""
    store, accepting = spec(), spec(accept_uncompacted=True)
    made(admin, store, COMPACTED_AT_ONCE)
    with pytest.raises(TopicRefused, match=r"delete\.retention\.ms=100.*at least 60000"):
        changelog.ensure(store)
    made(admin, accepting, COMPACTED_AT_ONCE | {"cleanup.policy": "delete"})
    changelog.ensure(accepting)


@TAIL_AND_REPLAY
def test_aborted_transaction_is_skipped(changelog, admin, replay):
    """Aborted records are never read, and the reader's offset passes them."""
    tp = made(admin, spec(), {"cleanup.policy": "compact"})
    writer = Writer(changelog, tp, f"w-{tp.topic}")
    with writer.transaction(commit=True):
        writer.send((b"a", b"1"))
    with writer.transaction(commit=False):
        writer.send((b"a", b"2"), (b"b", b"2"))
    # Two records, each with a marker behind, and a third in between.
    with Reader(changelog, tp, replay=replay) as reader:
        reader.read(to=5)
        assert reader.values == [b"1"]
        assert reader.newest.end.offset == 5
        with writer.transaction(commit=True):
            writer.send((b"b", b"3"))
        reader.read(to=7)
        assert reader.values == [b"1", b"3"]
    assert changelog.end_offsets([tp]) == {tp: 7}


@TAIL_AND_REPLAY
def test_an_open_transaction_holds_the_end_back(changelog, admin, replay):
    tp = made(admin, spec(), {"cleanup.policy": "compact"})
    Writer(changelog, tp).send((b"a", b"1"))
    writer = Writer(changelog, tp, f"w-{tp.topic}")
    with Reader(changelog, tp, replay=replay) as reader:
        with writer.transaction(commit=True):
            writer.send((b"a", b"2"))
            Writer(changelog, tp).send((b"a", b"3"))
            assert changelog.end_offsets([tp]) == {tp: 1}
            reader.read(to=1)
            reader.poll_until(lambda: reader.newest.end.high_watermark == 3, "the high watermark")
            looks, ends = len(reader.looks), {batch.end.sent_boot_ms for batch in reader.batches}
            reader.poll_until(
                lambda: len({batch.end.sent_boot_ms for batch in reader.batches} - ends) > 2, "more ends"
            )
            # What is written is not all delivered, so the partition is not current.
            assert len(reader.looks) == looks
            assert (reader.newest.position, reader.newest.end.offset) == (1, 1)
        reader.read(to=4)
        looks = len(reader.looks)
        reader.poll_until(lambda: len(reader.looks) > looks + 2, "more looks at the end")
        assert reader.looks == sorted(reader.looks)
        assert (reader.newest.end.offset, reader.newest.end.high_watermark) == (4, None)
    assert reader.values == [b"1", b"2", b"3"]


def test_of_an_idle_partition_one_end_is_requested(changelog, admin, monkeypatch):
    """Its last stable offset is its high watermark, and each request takes time."""
    monkeypatch.setattr("forebay_changelog.kafka.consumer._WRITTEN_TO_FOR_MS", 500.0)
    requested: list[tuple[IsolationLevel, list[TopicPartition]]] = []

    def recorded(admin, some, spec, isolation_level=IsolationLevel.READ_COMMITTED):
        requested.append((isolation_level, some))
        return ask_offsets(admin, some, spec, isolation_level)

    monkeypatch.setattr("forebay_changelog.kafka.consumer.ask_offsets", recorded)
    tp = made(admin, spec(), {"cleanup.policy": "compact"})
    Writer(changelog, tp).send((b"a", b"1"))
    with Reader(changelog, tp) as reader:
        reader.read(to=1)
        reader.poll_until(lambda: len(reader.looks) > 10, "looks for longer than that")
        requested.clear()
        looks = len(reader.looks)
        reader.poll_until(lambda: len(reader.looks) > looks + 3, "more looks")
        assert [some for level, some in requested if level is IsolationLevel.READ_COMMITTED and some] == []


def test_end_offset_requests_rotate_over_partitions(changelog, admin, monkeypatch):
    """Of more partitions than fit one request, each has its turn."""
    monkeypatch.setattr("forebay_changelog.kafka.consumer._ENDS_AT_ONCE", 1)
    store = spec(partitions=3)
    changelog.ensure(store)
    looks = {TopicPartition(store.topic, partition): set[float]() for partition in range(3)}
    consumer = changelog.consumer()
    try:
        for tp in looks:
            consumer.assign(tp, 0)

        def looked() -> bool:
            consumer.wait(Wake(), 0.02)
            consumer.poll(10)
            looked_boot_ms, current = consumer.current()
            for tp in current:
                looks[tp].add(looked_boot_ms)
            return all(len(seen) > 1 for seen in looks.values())

        wait_until(looked, "two looks at each end")
    finally:
        consumer.close()
    assert not set.intersection(*looks.values())


def test_unknown_end_offset_delays_no_other(changelog, admin):
    """A partition that does not exist keeps no other partition's end offset from being known."""
    store = spec(partitions=2)
    changelog.ensure(store)
    good, unknown = (TopicPartition(store.topic, partition) for partition in (0, 7))
    consumer, looks = changelog.consumer(), set[float]()
    try:

        def looked(least: int) -> bool:
            consumer.wait(Wake(), 0.02)
            consumer.poll(10)
            looked_boot_ms, current = consumer.current()
            looks.update([looked_boot_ms] if good in current else [])
            return len(looks) >= least

        consumer.assign(good, 0)
        wait_until(lambda: looked(2), "two looks at the end")
        consumer.assign(unknown, 0)
        wait_until(lambda: looked(30), "as many beside a partition that there is not")
    finally:
        consumer.close()


@TAIL_AND_REPLAY
def test_a_heartbeat_is_recognised_by_its_header_and_its_key(changelog, admin, replay):
    store = spec(partitions=3)
    changelog.ensure(store)
    value = Heartbeat(5, "q", 1).value()
    assert changelog.append_heartbeat(store.topic, writer="w", query_id="q", value=value) == {0: 1, 1: 1, 2: 1}
    tp = TopicPartition(store.topic, 0)
    header = [(HEARTBEAT_HEADER, b"")]
    Writer(changelog, tp).send((b"a", b"1"), (heartbeat_key("w"), b"2"))
    Writer(changelog, tp).send((b"b", b"3"), headers=header)
    with Reader(changelog, tp, replay=replay) as reader:
        found = reader.read(to=5)
    beats = [(key, content, beat) for _, key, content, _, beat in found]
    assert beats == [
        (heartbeat_key("w"), value, True),
        (b"a", b"1", False),
        (heartbeat_key("w"), b"2", False),
        (b"b", b"3", False),
    ]


def test_the_last_heartbeat_of_each_partition_is_known(changelog):
    store, names = spec(partitions=3), {"writer": "w", "query_id": "q"}
    changelog.ensure(store)
    first, second = (Heartbeat(5, "q", batch, lineage="planned") for batch in (1, 2))
    changelog.append_heartbeat(store.topic, **names, value=first.value())
    assert changelog.last_heartbeat(store.topic, "w") == first
    header = [(HEARTBEAT_HEADER, b"")]
    for partition in (0, 1):
        tp = TopicPartition(store.topic, partition)
        Writer(changelog, tp).send((heartbeat_key("w"), second.value()), headers=header)
    assert changelog.last_heartbeat(store.topic, "w") == second
    assert changelog.last_heartbeats(store.topic, "w") == [second, second, first]


@pytest.mark.parametrize("process", ["the same", "another"])
def test_a_superseded_writer_learns_it_and_stays_superseded(changelog, kafka_url, process):
    store = spec()
    changelog.ensure(store)
    other = changelog if process == "the same" else KafkaChangelog(kafka_url)

    def beat(through: KafkaChangelog, query: str) -> dict[int, int]:
        value = Heartbeat(1, query, 1).value()
        return through.append_heartbeat(store.topic, writer="w", query_id=query, value=value)

    beat(changelog, "first")
    beat(other, "second")
    for _ in range(2):
        with pytest.raises(BatchConflict, match=r"Two queries write as 'w'.* give each its own writer="):
            beat(changelog, "first")
    assert beat(other, "second")
    value = Heartbeat(1, "third", 1).value()
    assert changelog.append_heartbeat(store.topic, writer="another", query_id="third", value=value)


@pytest.mark.parametrize("another", [False, True])
def test_paused_writer_is_superseded_only_by_another(changelog, kafka_url, admin, monkeypatch, another):
    """A writer whose transaction the brokers aborted goes on, unless another query took its name."""
    monkeypatch.setattr("forebay_changelog.kafka.transactional_writer._TRANSACTION_TIMEOUT_MS", 1_000)
    store = spec(partitions=1)
    changelog.ensure(store)
    end = TopicPartition(store.topic, 0)

    def beat(query: str) -> dict[int, int]:
        value = Heartbeat(1, query, 1).value()
        driver = KafkaChangelog(kafka_url) if query == "second" else changelog
        return driver.append_heartbeat(store.topic, writer="w", query_id=query, value=value)

    class Paused:
        """A producer in a process that is stopped before it commits, until the brokers have aborted."""

        def __getattr__(self, name: str) -> object:
            return getattr(producer, name)

        def commit_transaction(self, timeout_s: float) -> None:
            producer.flush(10)
            written = end_of_all(admin, end)
            wait_until(lambda: end_of_all(admin, end) > written, "the transaction's abortion")
            if another:
                beat("second")
            producer.commit_transaction(timeout_s)

    beat("first")
    writer = changelog._writers[store.topic, "w"][1]["first"]
    producer, writer._producer = writer._producer, Paused()
    with pytest.raises(ChangelogUnreachable, match="was aborted"):
        beat("first")
    if another:
        with pytest.raises(BatchConflict, match="query first was superseded"):
            beat("first")
    else:
        assert beat("first")


def test_batch_may_take_longer_than_a_heartbeat(changelog, monkeypatch):
    """Also where the same query's last write was a heartbeat."""
    monkeypatch.setattr("forebay_changelog.kafka.transactional_writer._TRANSACTION_TIMEOUT_MS", 1_000)
    store = spec(partitions=1)
    changelog.ensure(store)
    names = {"writer": "w", "query_id": "q"}
    value = Heartbeat(1, "q", 1).value()
    changelog.append_heartbeat(store.topic, **names, value=value)

    def slow() -> Iterator[tuple[bytes, bytes | None]]:
        yield b"a", b"1"
        begun_s = time.monotonic()
        # The brokers look for outdated transactions twice a second.
        wait_until(lambda: time.monotonic() - begun_s > 2.5, "the time of a heartbeat's transaction")
        yield b"b", b"1"

    rows = {0: slow()}
    assert changelog.append_batch(store.topic, **names, batch_id=1, rows=rows, heartbeat=value) == {0: 5}


def test_batch_that_the_brokers_aborted_may_be_repeated(changelog, admin, monkeypatch):
    monkeypatch.setattr("forebay_changelog.kafka.transactional_writer._TRANSACTION_TIMEOUT_MS", 1_000)
    monkeypatch.setattr("forebay_changelog.kafka.changelog.BATCH_TIMEOUT_MS", 1_000)
    store = spec(partitions=1)
    changelog.ensure(store)
    end = TopicPartition(store.topic, 0)

    def append(rows: Iterable[tuple[bytes, bytes | None]]) -> dict[int, int]:
        names = {"writer": "w", "query_id": "q", "batch_id": 1, "heartbeat": Heartbeat(1, "q", 1).value()}
        return changelog.append_batch(store.topic, **names, rows={0: rows})

    def outdated() -> Iterator[tuple[bytes, bytes | None]]:
        yield b"a", b"1"
        wait_until(lambda: end_of_all(admin, end) == 2, "the row, and the transaction's abortion")
        yield from ((b"%d" % i, b"1") for i in range(100_000))

    with pytest.raises(ChangelogUnreachable, match="was aborted"):
        append(outdated())
    assert append([(b"a", b"1")])


def test_restarted_superseded_query_stays_fenced(changelog, kafka_url):
    """A superseded query does not take its writer's name back until that writer is retired."""
    store = spec(partitions=2)
    changelog.ensure(store)

    def beat(query: str, through: KafkaChangelog | None = None) -> dict[int, int]:
        value = Heartbeat(1, query, 1).value()
        driver = through or KafkaChangelog(kafka_url)
        return driver.append_heartbeat(store.topic, writer="w", query_id=query, value=value)

    beat("first")
    beat("second")
    third = KafkaChangelog(kafka_url)
    beat("third", third)
    for query in ("first", "second"):
        with pytest.raises(BatchConflict, match=f"Two queries write as 'w'.* query {query} was superseded"):
            beat(query)
    assert beat("third", third), "the one that writes was not thrown out"
    Writer(changelog, TopicPartition(store.topic, 0)).send(*((b"%d" % i, b"1") for i in range(3_000)))
    assert beat("third"), "and may be restarted itself"
    Writer(changelog, TopicPartition(store.topic, 0)).send(*((b"%d" % i, b"1") for i in range(3_000)))
    with pytest.raises(BatchConflict):
        beat("first")
    changelog.retire_writer(store.topic, "w")
    assert beat("first"), "nobody has the name of a retired writer"


@pytest.mark.parametrize("timeout", ["delivery", "request", "socket", "message"])
def test_long_url_timeout_blocks_no_heartbeat(changelog, kafka_url, timeout):
    """A heartbeat is written although the URL sets a timeout of two minutes."""
    store = spec()
    changelog.ensure(store)
    through = KafkaChangelog(f"{kafka_url}?{timeout}.timeout.ms=120000")
    value = Heartbeat(1, "q", 1).value()
    assert through.append_heartbeat(store.topic, writer="w", query_id="q", value=value)


@TAIL_AND_REPLAY
def test_valid_from_comes_from_the_header(changelog, admin, replay):
    """A record without the header is valid from its timestamp."""
    tp = made(admin, spec(), {"cleanup.policy": "compact"})
    writer = Writer(changelog, tp)
    writer.send((b"a", b"1"), timestamp=1_000)
    before_1970 = (-5_000).to_bytes(8, "big", signed=True)
    writer.send((b"a", b"2"), timestamp=1_000, headers=[("other", b"x"), (VALID_FROM_HEADER, before_1970)])
    with Reader(changelog, tp, replay=replay) as reader:
        assert [record[3] for record in reader.read(to=2)] == [1_000, -5_000]


@pytest.fixture(scope="module")
def compacted(changelog: KafkaChangelog, admin: AdminClient) -> TopicPartition:
    """A log of 400 offsets of which compaction left only the newest of each of 4 keys, and a few after them."""
    tp = made(admin, spec(), COMPACTED_AT_ONCE)
    writer = Writer(changelog, tp)
    for n in range(4):
        writer.send(*((b"k%d" % i, b"%d" % n) for i in range(100)))
    # The active segment is never compacted; a new one starts once a record is older.
    until = time.monotonic() + 60
    while left(changelog, tp) > 150:
        assert time.monotonic() < until, "nothing was compacted"
        writer.send((b"more", b"1"))
    return tp


def left(changelog: KafkaChangelog, tp: TopicPartition) -> int:
    with Reader(changelog, tp) as reader:
        return len(reader.read(changelog.end_offsets([tp])[tp]))


@TAIL_AND_REPLAY
def test_compaction_gap_lasts_until_the_shown_end(changelog, compacted, replay):
    """A gap stays open up to the end offset that the fetch response showed."""
    end = changelog.end_offsets([compacted])[compacted]
    with Reader(changelog, compacted, replay=replay) as reader:
        reader.read(end, most=10)
        read = [batch for batch in reader.batches if batch.records]
        with_gap = [batch for batch in read if batch.gap]
    assert len(read) > 5
    assert with_gap
    # In the middle of the replay, old values are missing whose successors have not arrived yet.
    assert with_gap[0].position < end
    assert all(batch.end.offset >= end for batch in with_gap)
    assert {key: value for _, key, value, _, _ in reader.records}[b"k7"] == b"3"


@TAIL_AND_REPLAY
def test_missing_offsets_after_a_young_record_are_no_gap(changelog, replay):
    """Behind a record that compaction cannot have reached yet, missing offsets are control records."""
    store = spec()
    changelog.ensure(store)
    tp = TopicPartition(store.topic, 0)

    def beat() -> None:
        for n in range(3):
            changelog.append_heartbeat(tp.topic, writer="w", query_id="q", value=Heartbeat(n, "q", n).value())

    writer = Writer(changelog, tp)
    writer.send((b"a", b"1"))
    beat()
    with Reader(changelog, tp, replay=replay) as reader:
        reader.read(to=7)
        # What compaction was told when that was written, nobody knows.
        assert any(batch.gap for batch in reader.batches)
        writer.send((b"b", b"1"))
        reader.read(to=8)
        known = len(reader.batches)
        beat()
        reader.read(to=14)
        assert not any(batch.gap for batch in reader.batches[known:])


@TAIL_AND_REPLAY
def test_older_records_do_not_prove_a_longer_compaction_lag(changelog, admin, replay):
    """After `min.compaction.lag.ms` is raised, records from before it still leave a gap."""
    store = spec()
    tp = made(admin, store, {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"})
    writer = Writer(changelog, tp, f"w-{tp.topic}")
    with Reader(changelog, tp, replay=replay) as reader:
        with writer.transaction(commit=True):
            writer.send((b"a", b"1"))
        reader.read(to=2)
        longer = ConfigEntry("min.compaction.lag.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ConfigResource.Type.TOPIC, tp.topic, incremental_configs=[longer])
        admin.incremental_alter_configs([topic])[topic].result(10)
        states = reader.consumer._states

        def known_to_be_longer() -> int:
            states.configuring.at_once = True
            return states.get(tp.topic).min_compaction_lag_ms

        reader.poll_until(known_to_be_longer, "the news of it")
        known = len(reader.batches)
        with writer.transaction(commit=True):
            writer.send((b"b", b"1"), timestamp=int(time.time() * 1000) - 1_000_000)
        reader.read(to=4)
        assert any(batch.gap for batch in reader.batches[known:])


@TAIL_AND_REPLAY
def test_offsets_missing_behind_an_old_record_are_a_gap(changelog, replay):
    store = spec()
    changelog.ensure(store)
    tp = TopicPartition(store.topic, 0)
    writer = Writer(changelog, tp, f"w-{tp.topic}")
    two_hours_ago = int(time.time() * 1000) - 7_200_000
    for value in (b"1", b"2"):
        with writer.transaction(commit=True):
            writer.send((b"a", value), timestamp=two_hours_ago)
    with Reader(changelog, tp, replay=replay) as reader:
        reader.read(to=4)
        assert any(batch.gap for batch in reader.batches)


@TAIL_AND_REPLAY
def test_gap_ends_at_the_last_stable_offset(changelog, admin, replay):
    """A gap is settled although some transaction is always open."""
    store = spec()
    tp = made(admin, store, {"cleanup.policy": "compact"})
    first, second = Writer(changelog, tp, f"a-{tp.topic}"), Writer(changelog, tp, f"b-{tp.topic}")
    with first.transaction(commit=True):
        first.send((b"a", b"1"))
        second.producer.begin_transaction()
        second.send((b"b", b"open"))
    first.producer.begin_transaction()
    first.send((b"a", b"open"))
    second.producer.commit_transaction(10)
    # Offsets 0 to 4: a, b, a's marker, a's next, which is open, and b's marker.
    with Reader(changelog, tp, replay=replay) as reader:
        reader.poll_until(lambda: reader.newest.end_reached, "a position where all was read")
        gaps = [batch for batch in reader.batches if batch.gap]
        assert gaps
        assert gaps[-1].end.offset == 5
        assert reader.newest.position == 3
        assert reader.values == [b"1", b"open"]
    first.producer.abort_transaction(10)


@TAIL_AND_REPLAY
def test_offset_before_the_log_start_is_below_the_floor(changelog, admin, replay):
    """A reader whose offset was deleted reads on from the log's beginning once it is reassigned."""
    tp = made(admin, spec(), {"cleanup.policy": "compact,delete"})
    Writer(changelog, tp).send(*((b"k%d" % i, b"1") for i in range(10)))
    deleted = admin.delete_records([KafkaTopicPartition(*tp, 8)])
    next(iter(deleted.values())).result(10)
    with Reader(changelog, tp, position=5, replay=replay) as reader:
        reader.poll_until(lambda: reader.newest.tombstone_floor > 5, "the loss")
        assert reader.records == []
        assert reader.newest.beginning == 8
        # What comes after it is read again by whoever starts anew.
        reader.consumer.assign(tp, 0)
        assert [record[0] for record in reader.read(to=10)] == [8, 9]


@TAIL_AND_REPLAY
def test_deletion_before_the_first_fetch_is_read_past(changelog, admin, monkeypatch, replay):
    """A log whose first records are deleted just before the first fetch is read from its new beginning."""
    tp = made(admin, spec(), {"cleanup.policy": "compact,delete"})
    Writer(changelog, tp).send(*((b"k%d" % i, b"1") for i in range(10)))
    with Reader(changelog, tp, replay=replay) as reader:
        with monkeypatch.context() as not_yet:
            not_yet.setattr(reader.consumer, "_fetch_more", lambda: None)
            reader.poll_until(lambda: reader.newest.beginning == 0, "where it begins")
        next(iter(admin.delete_records([KafkaTopicPartition(*tp, 8)]).values())).result(10)
        assert [record[0] for record in reader.read(to=10)] == [8, 9]


@TAIL_AND_REPLAY
def test_deletion_below_the_read_offset_changes_nothing(changelog, admin, replay):
    """Records are deleted up to the offset that a consumer has read."""
    tp = made(admin, spec(), {"cleanup.policy": "compact,delete"})
    writer = Writer(changelog, tp)
    writer.send(*((b"k%d" % i, b"1") for i in range(10)))
    with Reader(changelog, tp, replay=replay) as reader:
        reader.read(to=10)
        next(iter(admin.delete_records([KafkaTopicPartition(*tp, 10)]).values())).result(10)
        writer.send((b"a", b"2"))
        reader.read(to=11)
        assert {batch.tombstone_floor for batch in reader.batches} == {0}
        assert len(reader.records) == 11


@pytest.mark.parametrize("grown_to", [3, 30])
@TAIL_AND_REPLAY
def test_recreated_topic_has_another_identity(changelog, grown_to, replay):
    """Consumers that read the deleted topic learn the new one's identity."""
    store = spec()
    changelog.ensure(store)
    tp = TopicPartition(store.topic, 0)
    Writer(changelog, tp).send(*((b"k%d" % i, b"old") for i in range(10)))
    before = changelog.identity(store.topic)
    with Reader(changelog, tp, replay=replay) as reader:
        reader.read(to=10)
        assert reader.newest.identity == before
        after = changelog.reset(store)
        assert after != before
        Writer(changelog, tp).send(*((b"k%d" % i, b"new") for i in range(grown_to)))
        reader.poll_until(lambda: reader.newest.identity == after, "the other log")
        # As a rebuilt replica does.
        reader.batches.clear()
        reader.consumer.assign(tp, 0)
        reader.read(to=grown_to)
        assert reader.values == [b"new"] * grown_to


def test_a_poll_takes_the_share_of_every_partition(changelog):
    store = spec(partitions=4)
    changelog.ensure(store)
    for partition in range(4):
        Writer(changelog, TopicPartition(store.topic, partition)).send(*[(b"k%d" % i, b"1") for i in range(50)])
    with Reader(changelog, TopicPartition(store.topic, 0)) as reader:
        for partition in (1, 2, 3):
            reader.consumer.assign(TopicPartition(store.topic, partition), 0)
        most, taken = 0, 0
        while taken < 200:
            polled = sum(len(batch.records) for batch in reader.poll(10))
            most, taken = max(most, polled), taken + polled
    # Beside the one that ends the wait for records.
    assert 10 + 1 < most <= 4 * 10 + 1


def test_nothing_is_left_of_a_topics_descriptions(changelog):
    store = spec()
    changelog.ensure(store)

    def ids() -> int:
        gc.collect()
        return sum(isinstance(found, Uuid) for found in gc.get_objects())

    before = ids()
    for _ in range(50):
        changelog._topics.describe(store.topic)
    assert ids() - before < 10


def test_an_admin_client_without_answers_is_replaced(changelog, monkeypatch):
    monkeypatch.setattr("forebay_changelog.kafka.topics._RENEWED_AFTER_MS", 1_500.0)
    store = spec()
    changelog.ensure(store)
    tp = TopicPartition(store.topic, 0)
    Writer(changelog, tp).send((b"a", b"1"))
    silent = Admin({"bootstrap.servers": f"127.0.0.1:{free_port()}", "log_level": 0}, lambda error: None)
    changelog._topics._admin = silent
    with Reader(changelog, tp) as reader:
        assert reader.read(to=1)
    assert changelog._topics.admin is not silent


def test_unreachable_broker_leaves_its_partitions_out():
    """Polls and end offsets omit the partitions, and only the first identity request waits."""
    changelog = KafkaChangelog(f"kafka://127.0.0.1:{free_port()}")
    tp = TopicPartition("t", 0)
    assert changelog.end_offsets([tp]) == {}
    with pytest.raises(ChangelogUnreachable) as first:
        changelog.identity("t")
    with pytest.raises(ChangelogUnreachable, match="No broker of kafka://") as again:
        changelog.identity("t")
    # No second request: many stores opened one by one must not each wait.
    assert again.value.__cause__ is None
    assert first.value is not again.value
    with Reader(changelog, tp) as reader:
        for _ in range(10):
            assert reader.poll() == []


def test_partitions_that_are_added_are_reported_to_readers(changelog, admin):
    store = spec()
    changelog.ensure(store)
    consumer = changelog.consumer()
    consumer.assign(TopicPartition(store.topic, 0), 0)
    found: list[int | None] = []

    def reported(partitions: int) -> bool:
        found.extend(batch.partitions for batch in consumer.poll(10))
        return found[-1:] == [partitions]

    try:
        wait_until(lambda: reported(1), "the partitions")
        admin.create_partitions([NewPartitions(store.topic, 3)])[store.topic].result(10)
        wait_until(lambda: reported(3), "the added ones")
    finally:
        consumer.close()


def test_deleted_topic_is_named_and_read_once_back(changelog, monkeypatch):
    """The failure names the remedy and ends once the topic is back."""
    monkeypatch.setattr("forebay_changelog.kafka.topic_states._REFUSED_FOR_MS", 500.0)
    store = spec()
    changelog.ensure(store)
    tp = TopicPartition(store.topic, 0)
    Writer(changelog, tp).send((b"a", b"1"))
    with Reader(changelog, tp) as reader:
        reader.read(to=1)
        assert reader.consumer.failures() == {}
        changelog._topics.delete(store.topic)
        wait_until(lambda: (reader.poll(), reader.consumer.failures())[1], "the failure")
        failure = reader.consumer.failures()[tp]
        assert failure.reason.startswith(f"The topic '{store.topic}' at {changelog.kafka} is gone.")
        assert "forebay topology apply" in failure.reason
        assert failure.lasting
        looks = len(reader.looks)
        changelog.ensure(store)
        before = reader.newest.identity
        reader.poll_until(lambda: reader.newest.identity != before, "the new topic")
        assert len(reader.looks) == looks
        wait_until(lambda: (reader.poll(), reader.consumer.failures() == {})[1], "the failure's end")


def test_end_offset_unknown_for_long_is_a_failure(changelog, monkeypatch):
    """The failure ends when the partition is unassigned."""
    monkeypatch.setattr("forebay_changelog.kafka.consumer._END_UNKNOWN_FOR_MS", 1_000.0)
    store = spec()
    changelog.ensure(store)
    unknown = TopicPartition(store.topic, 7)
    with Reader(changelog, unknown) as reader:
        reader.poll()
        assert reader.consumer.failures() == {}
        wait_until(lambda: (reader.poll(), reader.consumer.failures())[1], "the failure")
        assert store.topic in reader.consumer.failures()[unknown].reason
        reader.consumer.unassign(unknown)
        assert reader.consumer.failures() == {}
        assert reader.consumer._first_ends.errors == {}


@pytest.mark.parametrize(
    ("code", "message", "lasting"),
    [
        (KafkaError.LEADER_NOT_AVAILABLE, r"t-0 at .* has no leader: .*Start the brokers that have its", False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, r"The topic 't' at .* is gone\.", True),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, r"t-0 at .* cannot be read: .*authorization failed", True),
        (KafkaError._TIMED_OUT, r"No broker of .* answers", False),
    ],
)
def test_what_keeps_an_end_from_being_learnt_is_said(changelog, monkeypatch, code, message, lasting):
    consumer, tp = changelog.consumer(), TopicPartition("t", 0)
    try:
        consumer.assign(tp, 0)
        monkeypatch.setattr("forebay_changelog.kafka.consumer._END_UNKNOWN_FOR_MS", 0.0)
        consumer._first_ends.errors[tp, IsolationLevel.READ_COMMITTED] = KafkaError(code)
        failure = consumer.failures()[tp]
    finally:
        consumer.close()
    assert re.search(message, failure.reason)
    assert failure.lasting == lasting


class RefusedOnce(Fetcher):
    """Begins with an error that does not go away, as where a right was lost or a codec is missing."""

    refused = False

    def take(self, max_records):
        if self.refused:
            return super().take(max_records)
        type(self).refused = True
        return {RefusedOnce.of: Fetched([], error="Broker: Topic authorization failed", lasting=True)}


def test_rejected_fetch_is_a_failure_until_data_arrives(changelog, monkeypatch):
    store = spec()
    changelog.ensure(store)
    tp = TopicPartition(store.topic, 0)
    monkeypatch.setattr("forebay_changelog.kafka.changelog.Fetcher", RefusedOnce)
    RefusedOnce.of = tp
    with Reader(changelog, tp) as reader:
        reader.poll()
        [failure] = reader.consumer.failures().values()
        assert failure == (f"{tp} cannot be read: Broker: Topic authorization failed.", True)
        Writer(changelog, tp).send((b"a", b"1"))
        reader.read(to=1)
        assert reader.consumer.failures() == {}
