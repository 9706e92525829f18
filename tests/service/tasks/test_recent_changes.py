from forebay_worker.tasks import recent_changes
from forebay_worker.tasks.recent_changes import ChangedKeys, RecentChanges

ELSEWHERE = b""


def of_position(position: int) -> RecentChanges:
    recent = RecentChanges()
    recent.restart(position)
    return recent


def batches_since(recent: RecentChanges, offset: int, nonce: bytes = ELSEWHERE) -> list[ChangedKeys] | None:
    found = recent.since(offset, nonce)
    return None if found is None else found.batches


def test_what_changed_since_an_offset_is_known_by_batch():
    recent = of_position(10)
    recent.note([b"a", b"b"], 12, end_reached=False)
    recent.note([], 13, end_reached=True)
    recent.note([b"b"], 14, end_reached=True)
    assert recent.end == 14
    assert batches_since(recent, 12) == [ChangedKeys(13, 14, (b"b",))]
    # In the middle of a batch: all of it, since others may have batches that end elsewhere.
    assert batches_since(recent, 11) == [ChangedKeys(10, 12, (b"a", b"b")), ChangedKeys(13, 14, (b"b",))]
    assert batches_since(recent, 14) == []
    assert recent.since(9, ELSEWHERE) is None
    recent.restart(14)
    assert recent.since(13, ELSEWHERE) is None


def test_what_is_noted_meanwhile_is_beyond_the_end_that_was_returned():
    recent = of_position(10)
    found = recent.since(10, ELSEWHERE)
    recent.note([b"a"], 12, end_reached=True)
    assert found is not None
    assert found.reached == (10, recent.nonce, 0)
    assert recent.reached == (12, recent.nonce, 0)


def test_replay_proves_no_changes_before_its_end():
    """Followers of another replica's changes cannot go on from it."""
    recent = of_position(0)
    recent.note([b"a"], 5, end_reached=False)
    recent.note([b"b"], 8, end_reached=True)
    recent.note([b"c"], 9, end_reached=True)
    # Tombstones before offset 8 may have been compacted away.
    assert recent.since(5, ELSEWHERE) is None
    assert batches_since(recent, 8) == [ChangedKeys(8, 9, (b"c",))]
    assert len(batches_since(recent, 0, recent.nonce) or ()) == 3


def test_recent_changes_are_bounded(monkeypatch):
    """What was dropped is known to be missing."""
    monkeypatch.setattr("forebay_worker.tasks.recent_changes._PROCESS_BYTES", 0)
    recent = of_position(1)
    for offset in range(1, 201):
        recent.note([b"%01000d" % offset], offset + 1, end_reached=True)
    assert recent.since(1, recent.nonce) is None
    kept = batches_since(recent, 190, recent.nonce)
    assert kept is not None
    assert [batch.end for batch in kept] == list(range(191, 202))


def test_followers_learn_of_keys_that_have_expired_by_their_number():
    """No offset says it. Which ones a follower of another replica was told of, nobody knows."""
    recent = RecentChanges(has_ttl=True)
    recent.note([b"a"], 5, end_reached=True)
    first = recent.since(5, recent.nonce)
    assert (first.expired, first.reached.expired) == ([], 0)
    recent.note_expired([b"a", b"b"])
    assert recent.moved_from(5, 0)
    assert recent.since(5, recent.nonce, 0).expired == [b"a", b"b"]
    assert recent.since(5, recent.nonce, 1).expired == [b"b"]
    assert recent.since(5, recent.nonce, 2).expired == []
    assert not recent.moved_from(5, 2)
    assert recent.since(5, ELSEWHERE) is None


def test_expired_keys_that_are_forgotten_are_not_left_out(monkeypatch):
    monkeypatch.setattr(recent_changes, "_MIN_BYTES", 1_000)
    monkeypatch.setattr(recent_changes, "_PROCESS_BYTES", 0)
    recent = RecentChanges(has_ttl=True)
    recent.note_expired([b"%d" % n for n in range(100)])
    assert recent.since(0, recent.nonce, 0) is None
    assert recent.since(0, recent.nonce, 99).expired == [b"99"]
    assert recent.since(0, recent.nonce, 100).expired == []
