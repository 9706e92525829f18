"""A log that was cut and grew again is not taken for the one that a reader left (KIP-320)."""

import pytest
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient

from examples.broker import Broker
from forebay.log_epochs import OffsetAndEpoch
from forebay.task_ids import TopicPartition
from forebay_changelog import Consumer
from forebay_changelog.kafka.changelog import KafkaChangelog
from tests.support.cluster import wait_until
from tests.support.kafka_log_files import cut_log
from tests.support.kafka_topics import Reader, Writer, made, spec

pytestmark = pytest.mark.kafka


def made_with(
    broker: Broker, partitions: int, policy: str = "compact"
) -> tuple[KafkaChangelog, list[TopicPartition]]:
    changelog = KafkaChangelog(broker.url)
    store = spec(partitions=partitions)
    made(AdminClient(changelog.kafka.librdkafka()), store, {"cleanup.policy": policy})
    return changelog, [TopicPartition(store.topic, partition) for partition in range(partitions)]


def write(changelog: KafkaChangelog, tp: TopicPartition, first: int, end: int) -> None:
    """In batches of ten records at most, between which a log can be cut."""
    writer = Writer(changelog, tp)
    for begin in range(first, end, 10):
        writer.send(*((b"k%d" % n, b"%d" % n) for n in range(begin, min(begin + 10, end))))


def restart(broker: Broker) -> None:
    broker.stop()
    broker.start()


@pytest.mark.parametrize("replay", [False, True], ids=["tail", "replay"])
def test_a_log_that_was_cut_and_grew_again_is_noticed_in_any_partition(broker, replay):
    changelog, partitions = made_with(broker, 4)
    proofs = {}
    for tp in partitions:
        write(changelog, tp, 0, 110)
        with Reader(changelog, tp, replay=replay) as reader:
            reader.read(110)
            proofs[tp] = reader.proof
    broker.stop()
    for tp in partitions[1:3]:
        cut_log(broker.directory, tp, 100)
    broker.start()
    for tp in partitions:
        write(changelog, tp, 200, 220)
    found: dict[TopicPartition, tuple[bool, list[bytes | None]]] = {}

    def read(consumer: Consumer, tp: TopicPartition) -> None:
        consumer.assign(tp, 110, proofs[tp])
        batches = []

        def polled() -> bool:
            batches.extend(batch for batch in consumer.poll(1_000) if batch.topic_partition == tp)
            return bool(batches) and (batches[-1].truncated or batches[-1].position == 130)

        wait_until(polled, f"the end of {tp}")
        assert {batch.end.offset for batch in batches} == {120 if batches[-1].truncated else 130}
        found[tp] = batches[-1].truncated, [value for batch in batches for _, _, value, _, _ in batch.records]
        consumer.unassign(tp)

    consumer = changelog.consumer(replay=replay)
    for tp in [*partitions, partitions[2], partitions[0]]:
        read(consumer, tp)
        cut = tp in partitions[1:3]
        assert found[tp] == (cut, [] if cut else [b"%d" % n for n in range(200, 220)])
    consumer.close()


def test_elections_and_open_transactions_cost_no_proof(broker):
    changelog, (tp,) = made_with(broker, 1)
    writer = Writer(changelog, tp, "w")
    with writer.transaction(commit=True):
        writer.send((b"a", b"1"))
    writer.producer.begin_transaction()
    writer.send((b"a", b"2"))
    restart(broker)
    with Reader(changelog, tp) as reader:
        reader.read(2)
        first = reader.proof
    # The marker is of a later epoch than the record before it.
    writer.producer.commit_transaction(10)
    with Reader(changelog, tp, position=2, proof=first) as reader:
        reader.read(4)
        assert reader.values == [b"2"]
        second = reader.proof
    restart(broker)
    with Reader(changelog, tp, position=4, proof=second) as reader:
        reader.poll_until(lambda: reader.newest.end.offset == 4, "the end")
        assert not reader.newest.truncated
        with writer.transaction(commit=True):
            writer.send((b"a", b"3"))
        reader.read(6)
        assert reader.values == [b"3"]


def cut_where_aborted(broker: Broker, policy: str) -> tuple[KafkaChangelog, TopicPartition, OffsetAndEpoch]:
    """A log that a reader left at offset 21, behind an aborted transaction, of which it has proven ten records: it
    was cut behind those, and has forty others there."""
    changelog, (tp,) = made_with(broker, 1, policy)
    write(changelog, tp, 0, 10)
    writer = Writer(changelog, tp, "w")
    with writer.transaction(commit=False):
        writer.send(*((b"k%d" % n, b"aborted") for n in range(10)))
    with Reader(changelog, tp) as reader:
        reader.read(21)
    assert reader.proof is not None
    assert reader.proof.offset == 10
    broker.stop()
    cut_log(broker.directory, tp, 10)
    broker.start()
    write(changelog, tp, 200, 240)
    return changelog, tp, reader.proof


def test_records_in_the_place_of_an_aborted_transaction_are_not_passed_over(broker):
    """What was read before it is still there, so only they show that the log was cut."""
    changelog, tp, proof = cut_where_aborted(broker, "compact")
    with Reader(changelog, tp, position=21, proof=proof) as reader:
        reader.poll_until(lambda: reader.newest.truncated or reader.newest.position == 50, "an answer")
        assert reader.newest.truncated
        assert reader.values == []


def test_a_compacted_log_still_proves_itself(broker):
    changelog, (tp,) = made_with(broker, 1)
    write(changelog, tp, 0, 10)
    with Reader(changelog, tp) as reader:
        reader.read(10)
        proof = reader.proof
    assert proof == OffsetAndEpoch(10, reader.newest.epochs[-1].epoch)
    restart(broker)
    write(changelog, tp, 0, 10)
    with Reader(changelog, tp, position=10, proof=proof) as reader:
        assert len(reader.read(20)) == 10
        assert not any(batch.truncated for batch in reader.batches)


@pytest.mark.parametrize("offset", [5, 500], ids=["within it", "beyond it"])
def test_a_log_that_knows_no_such_epoch_is_not_waited_for(broker, offset):
    """A topic that was recreated begins with epoch 0 again; its identity says that it is another."""
    changelog, (tp,) = made_with(broker, 1)
    write(changelog, tp, 0, 20)
    with Reader(changelog, tp, position=offset, proof=OffsetAndEpoch(offset, 7)) as reader:
        reader.poll_until(lambda: reader.newest.truncated or reader.newest.end.offset == 20, "an answer")
        assert reader.newest.truncated or offset > 20
        assert reader.values == []


def test_records_in_that_place_are_met_where_the_log_has_moved_on_since(broker):
    """Its beginning lies behind the proof, which nothing can confirm any more."""
    changelog, tp, proof = cut_where_aborted(broker, "compact,delete")
    admin = AdminClient(changelog.kafka.librdkafka())
    [deleted] = admin.delete_records([KafkaTopicPartition(*tp, 15)]).values()
    deleted.result(20)
    with Reader(changelog, tp, position=21, proof=proof) as reader:
        reader.poll_until(lambda: reader.newest.truncated or reader.newest.position == 50, "an answer")
        assert reader.newest.truncated
