from forebay.state_store import CommittedOffset


def test_a_fresh_commit_claims_nothing_beyond_its_position() -> None:
    committed = CommittedOffset(7)
    assert committed.position == 7
    assert committed.consistent_position is None
    assert committed.last_caught_up_epoch_ms is None
    assert not committed.as_of_epoch_ms
    assert not committed.restored


def test_committed_offset_document_ignores_newer_members():
    offset = CommittedOffset(7, pending_end=9, as_of_epoch_ms={"w": None}, restored=True)
    assert offset.document() == {"position": 7, "pending_end": 9, "as_of_epoch_ms": {"w": None}, "restored": True}
    assert CommittedOffset.from_document({**offset.document(), "of a later version": 1}) == offset
    assert CommittedOffset.from_document(CommittedOffset(0).document()) == CommittedOffset(0)
