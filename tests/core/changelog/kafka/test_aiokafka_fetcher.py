"""What a replay reads of a real broker's topics, beside what ``test_changelog`` asks of every reader."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from confluent_kafka.admin import AdminClient

from examples.broker import Broker
from forebay.changelog.kafka.aiokafka_fetcher import AiokafkaFetcher, Response
from forebay.changelog.kafka.changelog import KafkaChangelog
from forebay.task_ids import TopicPartition
from tests.conftest import need_kafka
from tests.support.cluster import wait_until
from tests.support.kafka_topics import Reader, Writer, end_of_all, made, spec

pytestmark = pytest.mark.kafka

COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker answers each request with a batch or two."""
    monkeypatch.setattr("forebay.changelog.kafka.aiokafka_fetcher._FETCH_BYTES", 300)


@pytest.mark.parametrize("most", [2, 1_000])
def test_transactions_that_overlap_are_read_as_by_librdkafka(changelog, admin, small_answers, most):
    tp = made(admin, spec(), COMPACT)
    rng = random.Random(5)
    writers = [Writer(changelog, tp, f"w{n}-{tp.topic}") for n in range(3)]
    producers = [writer.producer for writer in writers]
    plain, open_ones = Writer(changelog, tp), set[int]()
    for n in range(120):
        which = rng.randrange(4)
        row = (b"k%d" % rng.randrange(9), b"%d" % n)
        if which == 3:
            plain.send(row)
        elif which not in open_ones:
            producers[which].begin_transaction()
            open_ones.add(which)
            writers[which].send(row)
        elif rng.random() < 0.5:
            writers[which].send(row, row)
        else:
            open_ones.remove(which)
            end = rng.choice([producers[which].commit_transaction, producers[which].abort_transaction])
            end(10)
    for which in open_ones:
        producers[which].abort_transaction(10)
    wait_until(lambda: changelog.end_offsets([tp]) == {tp: end_of_all(admin, tp)}, "all transactions' markers")
    end_offset = end_of_all(admin, tp)
    with Reader(changelog, tp) as tail:
        expected = tail.read(end_offset)
    with Reader(changelog, tp, replay=True) as replay:
        assert replay.read(end_offset, most) == expected
        assert replay.newest.position == end_offset
        assert max(len(batch.records) for batch in replay.batches) <= most
    assert 20 < len(expected) < end_offset


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(kafka_url, admin, codec):
    changelog = KafkaChangelog(f"{kafka_url}?compression.type={codec}")
    tp = made(admin, spec(), COMPACT)
    rows = [(b"k%d" % n, b"x" * 100 + b"%d" % n) for n in range(500)]
    Writer(changelog, tp).send(*rows)
    with Reader(changelog, tp, replay=True) as reader:
        assert [(key, value) for _, key, value, _, _ in reader.read(500)] == rows


def test_a_replay_begins_in_the_middle_of_a_batch(changelog, admin):
    tp = made(admin, spec(), COMPACT)
    Writer(changelog, tp).send(*((b"k%d" % n, b"1") for n in range(10)))
    with Reader(changelog, tp, position=7, replay=True) as reader:
        assert [record[0] for record in reader.read(10)] == [7, 8, 9]


def test_partitions_are_replayed_one_after_the_other(changelog, admin):
    store = spec(partitions=2)
    made(admin, store, COMPACT)
    first, second = (TopicPartition(store.topic, partition) for partition in range(2))
    for tp, value in ((first, b"1"), (second, b"2")):
        Writer(changelog, tp).send((b"k", value))
    with Reader(changelog, first, replay=True) as reader:
        reader.read(1)
        reader.consumer.unassign(first)
        reader.batches.clear()
        reader.consumer.assign(second, 0)
        assert [record[2] for record in reader.read(1)] == [b"2"]
    fetcher = AiokafkaFetcher(changelog.kafka)
    fetcher.start(first, 0)
    with pytest.raises(ValueError, match=f"{store.topic}-0 is still being replayed: {store.topic}-1 has to wait"):
        fetcher.start(second, 0)
    fetcher.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    need_kafka()
    with Broker(tmp_path / "kafka") as broker:
        yield broker


def test_a_replay_goes_on_after_the_broker_was_killed(broker, small_answers):
    changelog = KafkaChangelog(broker.url)
    tp = made(AdminClient(changelog.kafka.librdkafka()), spec(), COMPACT)
    writer = Writer(changelog, tp)
    for n in range(100):
        writer.send((b"k%d" % n, b"%d" % n))
    with Reader(changelog, tp, replay=True) as reader:
        reader.read(30, most=10)
        broker.kill()
        # What was fetched before arrives; then nothing does.
        wait_until(lambda: all(not batch.records for batch in reader.poll()), "the last of it")
        assert reader.newest.position < 100
        broker.start()
        assert [record[0] for record in reader.read(100)] == list(range(100))


def test_what_only_librdkafka_can_be_set_to_makes_it_read(kafka_url, admin):
    changelog = KafkaChangelog(f"{kafka_url}?client.rack=a")
    tp = made(admin, spec(), COMPACT)
    Writer(changelog, tp).send((b"k", b"1"))
    with Reader(changelog, tp, replay=True) as reader:
        # aiokafka replays one at a time.
        other = made(admin, spec(), COMPACT)
        reader.consumer.assign(other, 0)
        reader.poll_until(lambda: {batch.topic_partition for batch in reader.batches} == {tp, other}, "both")


@pytest.fixture
def damaged(broker: Broker, tmp_path: Path) -> tuple[KafkaChangelog, TopicPartition]:
    """A log of three batches, in whose second one a disk has changed a digit."""
    changelog = KafkaChangelog(broker.url)
    tp = made(AdminClient(changelog.kafka.librdkafka()), spec(), COMPACT)
    for value in (b"1006", b"1007", b"1008"):
        Writer(changelog, tp).send((b"k", value))
    segment = tmp_path / "kafka" / "logs" / str(tp) / f"{0:020}.log"
    content = segment.read_bytes()
    assert content.count(b"1007") == 1
    with segment.open("r+b") as file:
        file.seek(content.index(b"1007"))
        file.write(b"9")
    return changelog, tp


def test_a_damaged_batch_is_never_delivered(damaged):
    changelog, tp = damaged
    with Reader(changelog, tp) as reader:
        reader.read(1)
        wait_until(lambda: (reader.poll(), reader.consumer.failures())[1], "the refusal")
        wait_until(lambda: len(reader.poll()) or reader.newest.end.offset == 3, "the end")
        assert reader.values == [b"1006"]
        assert reader.newest.position == 1
        [failure] = reader.consumer.failures().values()
    assert f"{tp} cannot be read: MessageSet at offset 1" in failure.reason
    assert "failed CRC32C check" in failure.reason
    assert failure.lasting
    with (
        pytest.raises(CorruptRecordException, match="the batch at offset 1 has a wrong checksum"),
        Reader(changelog, tp, replay=True) as reader,
    ):
        reader.read(3)
    assert reader.values == [b"1006"]


@pytest.mark.parametrize("replay", [False, True])
def test_the_url_switches_the_check_of_batches_off(damaged, replay):
    changelog = KafkaChangelog(f"{damaged[0].url}?check.crcs=false")
    with Reader(changelog, damaged[1], replay=replay) as reader:
        reader.read(3)
        assert reader.values == [b"1006", b"9007", b"1008"]


def response(data: bytes) -> Response:
    """An answer with these record batches, as of the protocol's version 11."""
    return Response(0, (0, 0, 9, 9, 0, None, -1, data), names_replica=True)


def test_a_damaged_batch_is_refused():
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 16)
    builder.append(0, 1_000, b"key", b"value", [])
    data = bytes(builder.build())
    assert response(data).take(10) == [(0, b"key", b"value", 1_000, False)]
    with pytest.raises(CorruptRecordException, match="the batch at offset 0 has a wrong checksum"):
        response(data.replace(b"value", b"walue")).take(10)


@pytest.mark.parametrize(("magic", "timestamp_ms"), [(0, 0), (1, 1_000)])
def test_the_formats_of_before_kafka_0_11_are_read(magic, timestamp_ms):
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 16)
    for offset in range(3):
        builder.append(offset, 1_000, b"k%d" % offset, None if offset == 1 else b"v")
    answer = response(bytes(builder.build()))
    assert answer.take(10) == [
        (0, b"k0", b"v", timestamp_ms, False),
        (1, b"k1", None, timestamp_ms, False),
        (2, b"k2", b"v", timestamp_ms, False),
    ]
    assert (answer.position, answer.exhausted) == (3, True)
