"""While a writer fills a log with what its source holds, no missing key is stated, whatever was read and when."""

from forebay.clock import boot_ms
from forebay.errors import NotReady, UnknownKey
from forebay.lag import EndOffset
from forebay.wire.parameters import ReadParameters
from forebay_changelog import Batch, Heartbeat
from forebay_changelog.record_headers import heartbeat_key
from forebay_worker.reads.values import miss
from forebay_worker.tasks.apply import apply_batch, resume
from forebay_worker.tasks.replica import Replica
from tests.support.held_reads import held


def beats(replica: Replica, *heartbeats: tuple[str, Heartbeat | None]) -> None:
    """Apply heartbeats of writers; None retires one."""
    first = replica.view.progress.position
    records = [
        (first + at, heartbeat_key(writer), beat and beat.value(), 0, True)
        for at, (writer, beat) in enumerate(heartbeats)
    ]
    end = first + len(records)
    apply_batch(
        replica,
        Batch(replica.topic_partition, records, end, False, EndOffset(end, boot_ms()), 0, 0, "log"),
    )


def beat(*, filling: bool) -> Heartbeat:
    return Heartbeat(None, "q", 1, filling=filling)


def test_miss_is_stated_once_every_writer_has_filled(tmp_path):
    admission, replica = held(tmp_path)

    def missing() -> type[Exception]:
        return type(miss(admission.admit(replica, ReadParameters()), replica.spec, b"absent"))

    beats(replica, ("a", beat(filling=False)))
    assert missing() is UnknownKey
    beats(replica, ("a", beat(filling=True)), ("b", beat(filling=True)))
    assert missing() is NotReady
    beats(replica, ("a", beat(filling=False)))
    assert missing() is NotReady
    beats(replica, ("b", None))
    assert missing() is UnknownKey


def test_miss_admitted_during_filling_is_not_stated_later(tmp_path):
    admission, replica = held(tmp_path)
    beats(replica, ("a", beat(filling=True)))
    before = admission.admit(replica, ReadParameters())
    beats(replica, ("a", beat(filling=False)))
    assert isinstance(miss(before, replica.spec, b"absent"), NotReady)


def test_a_key_missed_after_a_filling_began_is_not_stated(tmp_path):
    admission, replica = held(tmp_path)
    beats(replica, ("a", beat(filling=False)))
    before = admission.admit(replica, ReadParameters())
    beats(replica, ("a", beat(filling=True)))
    assert isinstance(miss(before, replica.spec, b"absent"), NotReady)


def test_reopened_store_remembers_that_its_log_is_filling(tmp_path):
    _, replica = held(tmp_path)
    beats(replica, ("a", beat(filling=True)))
    committed = replica.view.store.committed_offset(replica.topic_partition)
    assert committed is not None
    again = Replica.opened(replica.spec, replica.task, replica.view.store)
    resume(again, type(committed).from_document(committed.document()))
    assert again.view.filling
    beats(replica, ("a", beat(filling=False)))
    committed = replica.view.store.committed_offset(replica.topic_partition)
    assert committed is not None
    assert "filling" not in committed.document()
