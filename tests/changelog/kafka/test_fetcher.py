"""What is fetched of a real broker's topics, beside what ``test_changelog`` asks of every reader."""

import random

import pytest
from confluent_kafka.admin import AdminClient

from examples.broker import Broker
from forebay.task_ids import TopicPartition
from forebay_changelog.kafka.changelog import KafkaChangelog
from tests.support.cluster import wait_until
from tests.support.kafka_topics import Reader, Writer, end_of_all, made, spec

pytestmark = pytest.mark.kafka

COMPACT = {"cleanup.policy": "compact"}


@pytest.mark.parametrize("most", [2, 1_000])
def test_a_replay_reads_transactions_that_overlap_as_a_tail_does(changelog, admin, most):
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


def test_a_replay_goes_on_after_the_broker_was_killed(broker):
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
        before = reader.newest.position
        broker.start()
        writer.send(*((b"k%d" % n, b"%d" % n) for n in range(100, 200)))
        assert [record[0] for record in reader.read(200)] == list(range(200))
    assert 30 <= before <= 100


@pytest.fixture
def damaged(broker: Broker) -> tuple[KafkaChangelog, TopicPartition]:
    """A log of three batches, in whose second one a disk has changed a digit."""
    changelog = KafkaChangelog(broker.url)
    tp = made(AdminClient(changelog.kafka.librdkafka()), spec(), COMPACT)
    for value in (b"1006", b"1007", b"1008"):
        Writer(changelog, tp).send((b"k", value))
    segment = broker.directory / "logs" / str(tp) / f"{0:020}.log"
    content = segment.read_bytes()
    assert content.count(b"1007") == 1
    with segment.open("r+b") as file:
        file.seek(content.index(b"1007"))
        file.write(b"9")
    return changelog, tp


@pytest.mark.parametrize("replay", [False, True])
def test_a_damaged_batch_is_never_delivered(damaged, replay):
    changelog, tp = damaged
    with Reader(changelog, tp, replay=replay) as reader:
        reader.read(1)
        wait_until(lambda: (reader.poll(), reader.consumer.failures())[1], "the refusal")
        wait_until(lambda: len(reader.poll()) or reader.newest.end.offset == 3, "the end")
        assert reader.values == [b"1006"]
        assert reader.newest.position == 1
        [failure] = reader.consumer.failures().values()
    assert f"{tp} cannot be read: MessageSet at offset 1" in failure.reason
    assert "failed CRC32C check" in failure.reason
    assert failure.lasting


@pytest.mark.parametrize("replay", [False, True])
def test_the_url_switches_the_check_of_batches_off(damaged, replay):
    changelog = KafkaChangelog(f"{damaged[0].url}?check.crcs=false")
    with Reader(changelog, damaged[1], replay=replay) as reader:
        reader.read(3)
        assert reader.values == [b"1006", b"9007", b"1008"]
