"""What every changelog does. ``FOREBAY_TEST_CHANGELOG=URL`` runs this on another backend instead."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from forebay.errors import BatchConflict, ChangelogError, PartitionCountMismatch, TopicMissing
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Changelog, Consumer, Heartbeat, Record, Wake, heartbeat_key, open_changelog
from forebay_changelog.base import CompactionLimits
from tests.support.cluster import wait_until

OTHER = os.environ.get("FOREBAY_TEST_CHANGELOG")
BACKENDS = ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)] if OTHER is None else [OTHER]
REPLAY = pytest.mark.parametrize("replay", [False, True], ids=["tail", "replay"])


@pytest.fixture(scope="module", params=BACKENDS)
def changelog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Changelog:
    if request.param == "sqlite":
        return open_changelog(f"sqlite://{tmp_path_factory.mktemp('log')}")
    return open_changelog(request.getfixturevalue("kafka_url") if OTHER is None else OTHER)


def named() -> StoreSpec:
    """A store of two partitions, on a topic that no other test has."""
    return StoreSpec("s", "key-value", "string", "json", "murmur2", f"t-{secrets.token_hex(4)}", 2)


@pytest.fixture
def store(changelog: Changelog) -> StoreSpec:
    """The same, with its topic."""
    spec = named()
    changelog.ensure(spec)
    return spec


def beat(changelog: Changelog, store: StoreSpec, query: str = "q", writer: str = "w") -> dict[int, int]:
    value = Heartbeat(1, query, 1).value()
    return changelog.append_heartbeat(store.topic, writer=writer, query_id=query, value=value)


def append(changelog: Changelog, store: StoreSpec, *rows: tuple[bytes, bytes | None], batch: int = 1) -> int:
    """Append rows to partition 0; returns its next offset."""
    heartbeat = Heartbeat(1, "q", batch).value()
    names = {"writer": "w", "query_id": "q", "batch_id": batch}
    return changelog.append_batch(store.topic, **names, rows={0: rows}, heartbeat=heartbeat)[0]


@contextmanager
def consuming(changelog: Changelog, tp: TopicPartition, position: int = 0, *, replay=False) -> Iterator[Consumer]:
    consumer = changelog.consumer(replay=replay)
    consumer.assign(tp, position)
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, to: int) -> list[Batch]:
    """The batches up to an offset."""
    batches: list[Batch] = []

    def reached() -> bool:
        consumer.wait(Wake(), 0.02)
        batches.extend(consumer.poll(1000))
        return bool(batches) and batches[-1].position >= to

    wait_until(reached, f"offset {to}")
    return batches


def records(batches: list[Batch]) -> list[Record]:
    return [record for batch in batches for record in batch.records]


def test_a_topic_begins_empty_and_keeps_its_identity(changelog, store):
    identity = changelog.identity(store.topic)
    changelog.ensure(store)
    assert identity
    assert open_changelog(changelog.url).identity(store.topic) == identity
    partitions = [TopicPartition(store.topic, partition) for partition in range(2)]
    assert changelog.end_offsets(partitions) == dict.fromkeys(partitions, 0)


def test_another_partition_count_is_refused(changelog, store):
    with pytest.raises(PartitionCountMismatch, match=r"2 partitions.*3"):
        changelog.ensure(replace(store, partitions=3))


def test_a_missing_topic_is_named_and_not_created(changelog):
    store = named()
    for _ in range(2):
        with pytest.raises(TopicMissing, match=store.topic):
            changelog.ensure(store, create=False)
        with pytest.raises(TopicMissing, match="is external, so its owner creates it"):
            changelog.ensure(replace(store, external=True))
        with pytest.raises(TopicMissing, match=store.topic):
            changelog.identity(store.topic)


@REPLAY
def test_rows_are_read_in_order_and_then_the_heartbeat(changelog, store, replay):
    end = append(changelog, store, (b"a", b"1"), (b"b", b"2"), (b"a", None))
    with consuming(changelog, tp := TopicPartition(store.topic, 0), replay=replay) as consumer:
        batches = read(consumer, end)
    assert [record[1:3] + record[4:] for record in records(batches)] == [
        (b"a", b"1", False),
        (b"b", b"2", False),
        (b"a", None, False),
        (heartbeat_key("w"), Heartbeat(1, "q", 1).value(), True),
    ]
    assert batches[-1].end.offset >= end
    assert batches[-1].identity == changelog.identity(store.topic)
    assert changelog.end_offsets([tp])[tp] >= end


def test_reading_begins_at_any_offset(changelog, store):
    end = append(changelog, store, (b"a", b"1"), (b"b", b"2"))
    with consuming(changelog, TopicPartition(store.topic, 0), position=1) as consumer:
        assert records(read(consumer, end))[0][:3] == (1, b"b", b"2")


def test_a_heartbeat_reaches_every_partition(changelog, store):
    ends = beat(changelog, store)
    assert set(ends) == {0, 1}
    changelog.retire_writer(store.topic, "w")
    for partition, end in ends.items():
        with consuming(changelog, TopicPartition(store.topic, partition)) as consumer:
            written, retired = records(read(consumer, end + 1))
        assert written[1:3] + written[4:] == (heartbeat_key("w"), Heartbeat(1, "q", 1).value(), True)
        assert retired[1:3] + retired[4:] == (heartbeat_key("w"), None, True)


def test_a_superseded_query_is_refused(changelog, store):
    beat(changelog, store, "first")
    beat(changelog, store, "second")
    for _ in range(2):
        with pytest.raises(BatchConflict, match="Two queries write as 'w'"):
            beat(changelog, store, "first")
    assert beat(changelog, store, "second")


def test_an_unknown_writer_is_not_retired(changelog, store):
    with pytest.raises(ChangelogError, match=r"'w' of .*; its writers are none"):
        changelog.retire_writer(store.topic, "w")
    append(changelog, store, (b"a key", b"1"))
    beat(changelog, store, writer="v")
    assert changelog.writers(store.topic) == {"v", "w"}
    with pytest.raises(ChangelogError, match=r"'typo' of .*; its writers are v, w"):
        changelog.retire_writer(store.topic, "typo")
    changelog.retire_writer(store.topic, "w")
    assert changelog.writers(store.topic) == {"v"}
    with pytest.raises(ChangelogError, match=r"'w' of .*; its writers are v"):
        changelog.retire_writer(store.topic, "w")


def test_a_log_knows_its_queries_and_their_newest_heartbeat(changelog, store):
    def has_written(writer: str, query: str) -> bool | None:
        return changelog.has_written(store.topic, writer=writer, query_id=query)

    assert has_written("w", "q") is False
    assert changelog.last_heartbeat(store.topic, "w") is None
    append(changelog, store, (b"a", b"1"))
    beat(changelog, store, "second")
    assert changelog.last_heartbeat(store.topic, "w") == Heartbeat(1, "second", 1)
    assert [has_written("w", query) for query in ("q", "second", "third")] == [True, True, False]
    assert has_written("another", "q") is False
    changelog.retire_writer(store.topic, "w")
    assert has_written("w", "q") is not False, "its rows may still be there"
    assert changelog.last_heartbeat(store.topic, "w") is None
    changelog.reset(store)
    assert has_written("w", "q") is False


def test_only_a_writer_retired_as_completed_has_completed(changelog, store):
    assert not changelog.has_completed(store.topic, "w")
    for completed in (False, True):
        beat(changelog, store)
        assert not changelog.has_completed(store.topic, "w")
        changelog.retire_writer(store.topic, "w", completed=completed)
        assert changelog.has_completed(store.topic, "w") is completed
    assert not changelog.has_completed(store.topic, "another")
    changelog.reset(store)
    assert not changelog.has_completed(store.topic, "w")


def test_a_reset_log_is_another_and_is_written_on(changelog, store):
    beat(changelog, store)
    before = changelog.identity(store.topic)
    with consuming(changelog, TopicPartition(store.topic, 0)) as consumer:
        assert read(consumer, 1)[-1].identity == before
        after = changelog.reset(store)
        assert beat(changelog, store) == {0: 1, 1: 1}

        def is_noticed() -> bool:
            consumer.wait(Wake(), 0.02)
            return any(batch.identity == after for batch in consumer.poll(1000))

        wait_until(is_noticed, "the new log")
    assert changelog.identity(store.topic) == after != before


def test_what_a_compactor_leaves_has_the_last_of_each_key(changelog, store):
    compactor = changelog.compactor(store)
    if compactor is None:
        return  # its servers compact
    end = append(changelog, store, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert compactor.compact(store, CompactionLimits(0, 0)) == 1
    assert compactor.compacted_ms(store.topic) is not None
    with consuming(changelog, TopicPartition(store.topic, 0)) as consumer:
        batches = read(consumer, end)
    assert [record[:3] for record in records(batches)][:2] == [(1, b"b", b"2"), (2, b"a", b"3")]
    assert batches[0].gap
