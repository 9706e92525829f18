"""What an open transaction at a log's end does to lag, roles and what is stored."""

import pytest

from forebay.clock import boot_ms, epoch_ms
from forebay.lag import EndOffset, lag_of
from forebay.state_store import CommittedOffset
from forebay.task_ids import TaskId
from forebay_changelog import Batch
from forebay_worker.reads.admission import role_of
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.apply import apply_batch, progress_at_open, resume
from forebay_worker.tasks.replica import Replica
from tests.service.tasks.test_apply import SPEC, TP, batch


def behind_a_transaction(position: int, high_watermark: int) -> Batch:
    """Nothing new, as the log's end is held back."""
    end = EndOffset(position, boot_ms(), high_watermark)
    return Batch(TP, [], position, False, end, 0, 0, "identity", tombstone_life_ms=86_400_000.0)


def test_an_open_transaction_is_time_lag_and_withholds_no_role(pass_time):
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    apply_batch(replica, batch(1, (b"a", b"1", False)))
    replica.designate(boot_ms())
    pass_time(5_000)
    apply_batch(replica, behind_a_transaction(1, 4))
    lag = lag_of(replica.view.progress, boot_ms())
    assert lag.record_lag == 0
    assert lag.time_lag_ms is not None
    assert lag.time_lag_ms >= 5_000
    assert role_of(replica.view.progress, replica.designated_boot_ms, float("inf"), boot_ms()) == "active"
    assert (replica.view.progress.end_offset, replica.view.progress.high_watermark) == (1, 4)
    assert replica.view.progress.open_transaction_records == 3
    apply_batch(replica, batch(4))
    lag = lag_of(replica.view.progress, boot_ms())
    assert lag.record_lag == 0
    assert lag.time_lag_ms is not None
    assert lag.time_lag_ms < 1_000
    assert replica.view.progress.open_transaction_records == 0


def test_long_transaction_costs_no_rebuild(pass_time):
    """Compaction removes nothing that could not be read yet, and the store says when it last read all."""
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    apply_batch(replica, batch(1, (b"a", b"1", False)))
    for _ in range(20):
        pass_time(8_640_000)
        apply_batch(replica, behind_a_transaction(1, 4))
    committed = replica.view.store.committed_offset(TP)
    assert committed is not None
    assert committed.end_reached_epoch_ms == pytest.approx(epoch_ms(), abs=1_000)
    assert epoch_ms() - (committed.last_caught_up_epoch_ms or 0) > 2 * 86_400_000
    # Both after a restart, and without one.
    again = Replica.opened(SPEC, TaskId(0, 0), replica.view.store, "identity")
    resume(again, committed)
    for each in (again, replica):
        apply_batch(each, batch(4)._replace(tombstone_life_ms=86_400_000.0))
        assert each.view.progress.position == 4


def test_open_transaction_is_time_lag_after_a_restart():
    now = 1_000_000.0
    held_back = CommittedOffset(5, 5, None, now - 9_000, end_reached_epoch_ms=now - 10)
    progress = progress_at_open(held_back, 50_000.0, now)
    assert lag_of(progress, 50_000.0).time_lag_ms == 9_000
    assert progress.end_reached_boot_ms == 49_990.0


def test_lasting_transaction_is_a_notice_until_it_ends(pass_time):
    """Its text stays the same, so that it is one and the same notice to who compares them."""
    replica, found = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s")), []
    apply_batch(replica, batch(1, (b"a", b"1", False)))
    for _ in range(5):
        apply_batch(replica, behind_a_transaction(1, 4))
        found.append(replica.notices.get("transaction-open"))
        pass_time(4_000)
    assert found[:3] == [None] * 3
    assert found[3] == found[4]
    assert "a transaction has been open for more than ten seconds" in found[3]
    assert f"describe-producers --topic {TP.topic} --partition 0" in found[3]
    apply_batch(replica, batch(4))
    assert "transaction-open" not in replica.notices


def test_successive_transactions_are_not_a_lasting_one(pass_time):
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    for position in range(1, 10):
        apply_batch(replica, batch(position))
        apply_batch(replica, behind_a_transaction(position, position + 1))
        assert replica.open_transaction_ms(boot_ms()) < 4_000
        pass_time(4_000)


def test_notice_of_a_transaction_ends_with_the_store_that_it_was_about(pass_time):
    """While a rebuild cannot begin, nobody looks at the log."""
    replica = Replica.opened(SPEC, TaskId(0, 0), MemoryStore("s"))
    for _ in range(5):
        apply_batch(replica, behind_a_transaction(1, 4))
        pass_time(4_000)
    assert "transaction-open" in replica.notices
    replica.invalidate()
    assert "transaction-open" not in replica.notices
