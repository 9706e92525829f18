from forebay.stores import CommittedOffset


def test_a_fresh_commit_claims_nothing_beyond_its_position() -> None:
    committed = CommittedOffset(7)
    assert committed.position == 7
    assert committed.consistent_position is None
    assert committed.current_until_epoch_ms is None
    assert not committed.as_of_epoch_ms
    assert not committed.complete
