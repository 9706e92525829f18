"""Expiry follows stream time: replicas that saw an entry arrive and those built later have the same content."""

from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.clock import epoch_ms
from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import END_OF_USER_KEYS, USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay_worker.state.memory import MemoryStore
from forebay_worker.tasks.apply import resume
from forebay_worker.tasks.expiry import sweep, swept_to_ms
from forebay_worker.tasks.folding import Fold
from forebay_worker.tasks.replica import Replica

RETENTION_MS = 1_000
WINDOWS = StoreSpec(
    "w", "window", "string", "json", "murmur2", "t", 1, window_size_ms=100, retention_ms=RETENTION_MS
)
SESSIONS = StoreSpec("s", "session", "string", "json", "murmur2", "t", 1, gap_ms=50, retention_ms=RETENTION_MS)


def times(spec: StoreSpec, end_ms: int) -> tuple[int, ...]:
    """Those in the key of an entry that ends then; sessions last for longer than they are kept."""
    return (end_ms, end_ms - 5_000) if spec.kind == "session" else (end_ms - 100,)


@pytest.mark.parametrize("spec", [WINDOWS, SESSIONS], ids=["windows", "sessions"])
def test_sweep_removes_exactly_what_is_past_retention(spec):
    replica = Replica.opened(spec, TaskId(0, 0), MemoryStore("s"))
    for end_ms in range(0, 20_001, 100):
        for key in (b"a", b"b"):
            replica.view.store.put(spec.stored_keys.stored(key, *times(spec, end_ms)), b"1")
        replica.view.store.commit({})
        replica.publish(stream_time_ms=end_ms)
        sweep(replica)
    while sweep(replica):
        pass
    found = [spec.stored_keys.parse(key) for key, _ in replica.view.store.scan(USER_TAG, END_OF_USER_KEYS)]
    kept = [times(spec, end_ms) for end_ms in range(19_100, 20_001, 100)]
    assert [(key.plain, key.times_ms) for key in found] == [(key, at) for key in (b"a", b"b") for at in kept]
    assert oldest_kept_ms(spec, 20_000) == kept[0][0] - 99


VERSIONS = StoreSpec("v", "versioned", "string", "json", "murmur2", "t", 1, history_retention_ms=1_000)
WRITTEN = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 30)), max_size=40)


@settings(deadline=None)
@given(written=WRITTEN, at_once=st.integers(2, 7), sweeps=st.integers(0, 10))
def test_sweep_removes_exactly_versions_beyond_history(written, at_once, sweeps):
    """They were replaced before the history that is kept begins."""
    replica = Replica.opened(VERSIONS, TaskId(0, 0), MemoryStore("s"))
    with patch("forebay_worker.tasks.expiry._ENTRIES_PER_SWEEP", at_once):
        for number, (key, hundreds) in enumerate(written):
            replica.view.store.put(VERSIONS.stored_keys.stored(key, 100 * hundreds), b"1")
            replica.view.store.commit({})
            replica.publish(stream_time_ms=max(100 * hundreds, replica.view.stream_time_ms or 0))
            if number % 11 < sweeps:
                sweep(replica)
        # As after a restart, so that a pass is due however little history moved on.
        replica.walk = None
        for _ in range(len(written)):
            sweep(replica)
    found = [
        VERSIONS.stored_keys.parse(stored) for stored, _ in replica.view.store.scan(USER_TAG, END_OF_USER_KEYS)
    ]
    for key in {key for key, _ in written}:
        versions = sorted({100 * hundreds for written_to, hundreds in written if written_to == key})
        begins_ms = history_begins_ms(VERSIONS, replica.view.stream_time_ms)
        replaced = {at for at, following in pairwise(versions) if following <= begins_ms}
        assert [at.times_ms[0] for at in found if at.plain == key] == [at for at in versions if at not in replaced]


def add_windows(replica: Replica, *ends_ms: int) -> None:
    for end_ms in ends_ms:
        replica.view.store.put(WINDOWS.stored_keys.stored(b"a%d" % end_ms, *times(WINDOWS, end_ms)), b"1")
    replica.view.store.commit({})
    replica.publish(stream_time_ms=max(ends_ms))


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_rebuilt_store_is_swept_by_its_own_stream_time(in_the_middle):
    replica = Replica.opened(WINDOWS, TaskId(0, 0), MemoryStore("s"))
    with patch("forebay_worker.tasks.expiry._ENTRIES_PER_SWEEP", 5):
        # A record of the far future, before its log is reset.
        add_windows(replica, *range(0, 1_000, 100), 10**12)
        while sweep(replica) and not in_the_middle:
            pass
        replica.publish(store=MemoryStore("s"))
        add_windows(replica, *range(0, 1_000, 100))
        for _ in range(5):
            assert sweep(replica) == 0
        add_windows(replica, 1_500)
        assert sum(sweep(replica) for _ in range(5)) == 6


def test_what_a_refused_commit_was_to_record_is_recorded_later():
    """Up to when entries were deleted is known to a restart, too."""
    tp = TopicPartition("t", 0)
    replica = Replica.opened(WINDOWS, TaskId(0, 0), MemoryStore("s"))
    store = replica.view.store
    for at_ms in (1_000, 5_000_000):
        store.put(WINDOWS.stored_keys.stored(b"a", at_ms), b"1")
    store.commit({tp: CommittedOffset(2, 2, stream_time_ms=5_000_000)})
    resume(replica, store.committed_offset(tp))
    put = store.put
    store.put = lambda key, value: None
    assert sweep(replica) == 1
    assert replica.view.swept_to_ms is not None
    assert swept_to_ms(store) is None
    store.put = put
    store.put(WINDOWS.stored_keys.stored(b"a", 1_000), b"1")
    store.commit({})
    replica.walk = None
    assert sweep(replica) == 1
    assert swept_to_ms(store) == replica.view.swept_to_ms


@pytest.mark.parametrize("spec", [VERSIONS, WINDOWS], ids=["versions", "windows"])
def test_history_lost_to_a_shorter_retention_stays_lost(spec):
    """A longer retention does not make the deleted entries count as absent."""
    tp = TopicPartition("t", 0)
    replica = Replica.opened(spec, TaskId(0, 0), MemoryStore("s"))
    for at_ms in (1_000, 2_000, 5_000):
        replica.view.store.put(spec.stored_keys.stored(b"a", at_ms), b"1")
    replica.view.store.commit({tp: CommittedOffset(3, 3, stream_time_ms=5_000)})
    resume(replica, replica.view.store.committed_offset(tp))
    while sweep(replica):
        pass
    begins_ms = replica.view.history_begins_ms if spec is VERSIONS else replica.view.oldest_kept_ms
    longer = replace(spec, retention_ms=9_000) if spec is WINDOWS else replace(spec, history_retention_ms=9_000)
    again = Replica.opened(longer, TaskId(0, 0), replica.view.store)
    resume(again, again.view.store.committed_offset(tp))
    assert (again.view.history_begins_ms if spec is VERSIONS else again.view.oldest_kept_ms) == begins_ms


def test_what_has_no_retention_stays():
    assert oldest_kept_ms(StoreSpec("k", "key-value", "string", "json", "murmur2", "t", 1), 5_000) is None


VALUES = StoreSpec("k", "key-value", "string", "json", "murmur2", "t", 1, ttl_ms=1_000)
AGES = st.dictionaries(st.binary(min_size=1, max_size=2), st.integers(-2_000, 2_000), max_size=40)


@settings(deadline=None)
@given(ages_ms=AGES, at_once=st.integers(1, 7), later_ms=st.integers(0, 3_000))
def test_values_are_deleted_once_they_are_as_old_as_their_ttl(ages_ms, at_once, later_ms):
    """By whatever was applied when, the same are left, and followers are told of each that was there."""
    store = MemoryStore("k")
    replica = Replica.opened(VALUES, TaskId(0, 0), store)
    now_ms = int(epoch_ms())
    fold = Fold.after(CommittedOffset(0))
    with patch("forebay_worker.tasks.folding.latest_epoch_ms", lambda: now_ms):
        fold.add(
            VALUES, [(n, key, b"1", now_ms - age_ms, False) for n, (key, age_ms) in enumerate(ages_ms.items())]
        )
    for key, value in fold.changes.items():
        store.delete(key) if value is None else store.put(key, value)
    store.commit({})
    assert {key for key, _ in store.scan(USER_TAG, END_OF_USER_KEYS)} == {
        USER_TAG + key for key, age_ms in ages_ms.items() if age_ms < 1_000
    }
    with (
        patch("forebay_worker.tasks.expiry._ENTRIES_PER_SWEEP", at_once),
        patch("forebay.store_kinds.latest_epoch_ms", lambda: now_ms + later_ms),
    ):
        for _ in range(80):
            sweep(replica)
    left = {key for key, _ in store.scan(USER_TAG, END_OF_USER_KEYS)}
    assert left == {USER_TAG + key for key, age_ms in ages_ms.items() if age_ms + later_ms < 1_000}
    known = replica.view.recent_changes.since(0, replica.view.recent_changes.nonce)
    assert sorted(known.expired) == sorted(
        USER_TAG + key for key, age_ms in ages_ms.items() if age_ms < 1_000 <= age_ms + later_ms
    )
