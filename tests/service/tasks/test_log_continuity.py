"""When a replica goes on in a log, and when it does not."""

from dataclasses import replace

import pytest

from forebay.lag import EndOffset
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch
from forebay_worker.tasks.folding import Fold, advance
from forebay_worker.tasks.log_continuity import BeginningMoved, LogCut, continuity_fault

SPEC = StoreSpec("s", "key-value", "string", "json", "murmur2", "log", 1)


def batch(position: int, beginning: int = 0, **fields: object) -> Batch:
    end = EndOffset(position, 0.0)
    whole = Batch(TopicPartition("log", 0), [], position, False, end, beginning, 0, "identity")
    return whole._replace(**{"is_beginning_fixed": True, **fields})


def begun(beginning: int) -> CommittedOffset:
    """The offset after a replay of a log that began there."""
    before = CommittedOffset(0)
    return advance(before, batch(beginning + 10, beginning), Fold.after(before), None, 0.0)


@pytest.mark.parametrize("beginning", [0, 7])
def test_a_beginning_that_moved_behind_the_replay_is_a_rebuild(beginning):
    before = begun(beginning)
    assert continuity_fault(SPEC, "identity", before, None, batch(20, beginning)) is None
    # Even if nothing else was written since.
    for position in (before.position, 20):
        found = continuity_fault(SPEC, "identity", before, None, batch(position, beginning + 1))
        assert isinstance(found, BeginningMoved)


def test_a_beginning_that_the_brokers_move_means_nothing():
    deleting = batch(20, 5, is_beginning_fixed=False)
    assert continuity_fault(SPEC, "identity", begun(0), None, deleting) is None
    accepted = replace(SPEC, accept_uncompacted=True)
    assert continuity_fault(accepted, "identity", begun(0), None, batch(20, 5)) is None


def test_a_replica_keeps_the_beginning_of_its_replay():
    before = begun(3)
    after = advance(before, batch(40, 3), Fold.after(before), None, 0.0)
    assert CommittedOffset.from_document(after.document()).replay_beginning == 3


def test_a_log_that_lost_records_is_cut():
    for found in (batch(20, truncated=True), batch(5)):
        assert isinstance(continuity_fault(SPEC, "identity", begun(0), None, found), LogCut)
