"""Compaction removes nothing that any reader of the log would miss."""

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.retention import history_begins_ms, oldest_kept_ms
from forebay.store_spec import StoreSpec
from forebay_changelog.record_headers import heartbeat_key
from forebay_changelog.sqlite import compaction
from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.support.sqlite_partitions import Logged, Row, append, beat, fold, logged, rows_of, state

DAY_MS = 86_400_000
LATEST = StoreSpec("s", "key-value", "string", "json", "murmur2", "t", 1)
WINDOWS = StoreSpec("s", "window", "string", "json", "murmur2", "t", 1, window_size_ms=2, retention_ms=4)
SESSIONS = StoreSpec("s", "session", "string", "json", "murmur2", "t", 1, gap_ms=2, retention_ms=4)
VERSIONS = StoreSpec("s", "versioned", "string", "json", "murmur2", "t", 1, history_retention_ms=4)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "0.db")
    sqlite_log_file.create(file, "identity")
    return file


def compact(
    path: str, now_ms: int = 10**9, lag_ms: int = 0, retention_ms: int = 10**9, spec: StoreSpec = LATEST
) -> int:
    return compaction.compact(path, spec, CompactionLimits(lag_ms, retention_ms), now_ms)


def test_compaction_keeps_each_keys_last_record(path: str) -> None:
    """The record stays at its offset."""
    append(path, rows_of("a=1 b=1 a=2 c=1 b=2 a=3 d=1"))
    assert compact(path) == 3
    assert [(offset, key, value) for offset, key, value, *_ in logged(path)] == [
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"a", b"3"),
        (6, b"d", b"1"),
    ]
    assert state(path)[1] == 7
    assert compact(path) == 0
    assert append(path, rows_of("e=1"), 1) == (1, 8)


def test_compaction_keeps_the_last_heartbeat_of_each_writer(path: str) -> None:
    for number in range(3):
        beat(path, b"%d" % number, query="one", writer="first")
        beat(path, b"%d" % number, query="two", writer="second")
    compact(path, now_ms=10**15)
    assert [(key, value) for _, key, value, *_ in logged(path)] == [
        (heartbeat_key("first"), b"2"),
        (heartbeat_key("second"), b"2"),
    ]


def test_a_key_that_reads_like_a_writers_is_none(path: str) -> None:
    append(path, [(heartbeat_key("w"), b"1", 1)])
    beat(path)
    assert compact(path, now_ms=10**15) == 0


def test_records_within_the_minimum_lag_stay(path: str) -> None:
    """Records behind a young one stay too, however old they are."""
    append(path, rows_of("a=1 a=2", timestamp_ms=100), 0)
    append(path, rows_of("a=3", timestamp_ms=951), 1)
    append(path, rows_of("a=4 a=5", timestamp_ms=100), 2)
    compact(path, now_ms=1000, lag_ms=50)
    assert [value for _, _, value, *_ in logged(path)] == [b"3", b"4", b"5"]
    compact(path, now_ms=1001, lag_ms=50)
    assert [value for _, _, value, *_ in logged(path)] == [b"5"]


def test_old_tombstones_go_and_the_floor_says_up_to_where(path: str) -> None:
    append(path, rows_of("a=1 b=1 a b", timestamp_ms=100), 0)
    append(path, rows_of("c=1 c", timestamp_ms=500), 1)
    append(path, rows_of("d=1", timestamp_ms=500), 2)

    compact(path, now_ms=1000, retention_ms=901)
    assert [key for _, key, *_ in logged(path)] == [b"a", b"b", b"c", b"d"]
    assert state(path)[2] == 0

    compact(path, now_ms=1000, retention_ms=900)
    assert [(offset, key) for offset, key, *_ in logged(path)] == [(5, b"c"), (6, b"d")]
    assert state(path) == ("identity", 7, 4)


def test_replaced_tombstone_does_not_raise_the_floor(path: str) -> None:
    append(path, rows_of("a=1 a a=2 b=1"))
    assert compact(path, retention_ms=0) == 2
    assert state(path)[2] == 0


def test_the_last_record_stays_even_if_it_is_an_old_tombstone(path: str) -> None:
    append(path, rows_of("a=1 a", timestamp_ms=100))
    compact(path, now_ms=10**12, retention_ms=1)
    assert [(offset, key, value) for offset, key, value, *_ in logged(path)] == [(1, b"a", None)]


def test_the_tombstone_floor_never_falls(path: str) -> None:
    append(path, [*rows_of("a", timestamp_ms=500), *rows_of("b c x=1", timestamp_ms=100)])
    compact(path, now_ms=1000, retention_ms=900)
    assert [key for _, key, *_ in logged(path)] == [b"a", b"x"]
    assert state(path)[2] == 3
    compact(path, now_ms=1000, retention_ms=500)
    assert [key for _, key, *_ in logged(path)] == [b"x"]
    assert state(path)[2] == 3


def test_tombstone_stays_with_the_record_it_deletes(path: str) -> None:
    append(path, [*rows_of("a=1", timestamp_ms=1000), *rows_of("a x=1", timestamp_ms=100)])
    compact(path, now_ms=1000, lag_ms=50, retention_ms=100)
    assert fold(logged(path)) == {b"x": b"1"}
    assert len(logged(path)) == 3


def window(key: str, start_ms: int) -> bytes:
    return key.encode() + start_ms.to_bytes(8, "big", signed=True)


def test_windows_past_retention_are_removed(path: str) -> None:
    """A window is past retention by both stream time and the clock."""
    starts = [0, 2, 4, 6, 7, 10]
    append(path, [(window("a", start), b"1", 100) for start in starts])
    assert compact(path, now_ms=DAY_MS + 4 + 99, spec=WINDOWS) == 0
    # Stream time is 12, and what ended by 8 is past a retention of 4.
    assert compact(path, now_ms=DAY_MS + 4 + 100, spec=WINDOWS) == 4
    assert [key for _, key, *_ in logged(path)] == [window("a", 7), window("a", 10)]
    assert state(path)[2] == 0


def test_deleted_newest_window_keeps_stream_time(path: str) -> None:
    """The newest window's tombstone stays, so that stream time does not go back."""
    append(path, [(window("a", 0), b"1", 100), (window("a", 100), b"1", 100), (window("a", 100), None, 100)])
    append(path, [(window("a", 1), b"1", 100)], 1)
    for _ in range(2):
        compact(path, now_ms=10 * DAY_MS, retention_ms=0, spec=WINDOWS)
        assert [(key, value) for _, key, value, *_ in logged(path)] == [
            (window("a", 100), None),
            (window("a", 1), b"1"),
        ]


def test_versions_go_that_were_replaced_before_history_begins(path: str) -> None:
    append(path, [(b"a", b"%d" % ms, ms) for ms in (1, 2, 3, 5, 6, 9)] + [(b"b", b"1", 1), (b"c", b"1", 1)])
    append(path, [(b"b", None, 2), (b"c", None, 9), (b"a", b"again", 9), (b"d", b"1", 0)], 1)
    # By the clock, history begins at 1: what goes is the one of a's two versions of 9 that the other replaced.
    assert compact(path, now_ms=DAY_MS + 4 + 1, spec=VERSIONS) == 1
    assert compact(path, now_ms=DAY_MS + 4 + 9, spec=VERSIONS) == 4
    # History begins at 5: of a, that is the version of 5; a key's last version stays, and be it a deletion.
    assert [(key, value) for _, key, value, *_ in logged(path)] == [
        (b"a", b"5"),
        (b"a", b"6"),
        (b"c", b"1"),
        (b"b", None),
        (b"c", None),
        (b"a", b"again"),
        (b"d", b"1"),
    ]
    assert state(path)[2] == 0


def test_far_future_version_does_not_empty_the_log(path: str) -> None:
    """Compaction goes on by the clock beside a version of the far future."""
    append(path, [(b"a", b"1", 1), (b"a", b"2", DAY_MS), (b"b", b"1", 10**16)])
    for number in range(3):
        beat(path, b"%d" % number)
    # Stream time says that the first was replaced long ago, and the clock that it was today.
    assert compact(path, now_ms=DAY_MS + 4, spec=VERSIONS) == 0
    assert compact(path, now_ms=10**15, spec=VERSIONS) == 3
    assert [value for _, _, value, *_ in logged(path)] == [b"2", b"1", b"2"]


def test_others_write_while_a_log_is_compacted(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, rows_of("a=1 " * 50 + "b=1"))
    monkeypatch.setattr(compaction, "_RECORDS_AT_ONCE", 10)
    written = []

    def write_meanwhile(_: float) -> None:
        with (
            contextlib.closing(sqlite_log_file.connect(path)) as connection,
            sqlite_log_file.transaction(connection),
        ):
            connection.execute("PRAGMA busy_timeout=0")
        written.append(append(path, rows_of("c=1"), len(written) + 1))

    monkeypatch.setattr(compaction.time, "sleep", write_meanwhile)
    assert compact(path) == 49
    assert [key for _, key, *_ in logged(path)] == [b"a", b"b", *[b"c"] * 5]


def test_a_log_that_is_reset_meanwhile_keeps_what_it_gets_then(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(path, rows_of("a=1 " * 50))
    monkeypatch.setattr(compaction, "_RECORDS_AT_ONCE", 10)

    def reset(_: float) -> None:
        sqlite_log_file.reset(path, "another")
        append(path, rows_of("a=2 " * 50))

    monkeypatch.setattr(compaction.time, "sleep", reset)
    assert compact(path) == 10
    assert len(logged(path)) == 50


def shown(spec: StoreSpec, records: Sequence[Logged]) -> object:
    """What a store shows that was built from these records; of versions, those in force since history begins."""
    own = [record for record in records if not record[4]]
    beats = fold([record for record in records if record[4]])
    if spec.kind == "key-value":
        return fold(own), beats
    if spec.kind == "versioned":
        versions = {(key, timestamp_ms): value for _, key, value, timestamp_ms, _ in own}
        begins = history_begins_ms(spec, max((ms for _, ms in versions), default=None))
        replaced = {
            version
            for version, following in pairwise(sorted(versions))
            if version[0] == following[0] and begins is not None and following[1] <= begins
        }
        return {version: value for version, value in versions.items() if version not in replaced}, beats
    times = [spec.stored_keys.split_changelog(record[1], 0).times_ms[0] for record in own]
    stream_time_ms = max(times) + (spec.window_size_ms or 0) if times else None
    oldest = oldest_kept_ms(spec, stream_time_ms)
    kept = {
        key: value
        for key, value in fold(own).items()
        if oldest is None or spec.stored_keys.split_changelog(key, 0).times_ms[0] >= oldest
    }
    return kept, beats


def row_of(spec: StoreSpec, key: int, value: bytes | None, timestamp_ms: int) -> Row:
    """Where there are times in the key, they are made of the timestamp."""
    text = b"%d" % (key % 2 if spec.stored_keys.times else key)
    if spec.kind in ("window", "session"):
        text += timestamp_ms.to_bytes(8, "big", signed=True) * spec.stored_keys.times
    return text, value, timestamp_ms


operation = st.tuples(
    st.sampled_from(["put", "put", "put", "delete", "beat", "compact"]), st.integers(0, 3), st.integers(0, 40)
)


@settings(derandomize=True, deadline=None, max_examples=50)
@pytest.mark.parametrize("spec", [LATEST, WINDOWS, SESSIONS, VERSIONS], ids=lambda spec: spec.kind)
@given(
    operations=st.lists(operation, max_size=30),
    lag_ms=st.integers(0, 30),
    retention_ms=st.integers(0, 30),
    later_ms=st.sampled_from([0, DAY_MS + 10, 2 * DAY_MS]),
)
def test_compaction_never_changes_what_the_log_says(
    spec: StoreSpec,
    operations: list[tuple[str, int, int]],
    lag_ms: int,
    retention_ms: int,
    later_ms: int,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/0.db"
        sqlite_log_file.create(path, "identity")
        written: list[Logged] = []
        batch: list[Row] = []
        batches = 0
        for number, (what, key, timestamp_ms) in enumerate([*operations, ("compact", 0, 40)]):
            if what in ("put", "delete"):
                batch.append(row_of(spec, key, b"%d" % number if what == "put" else None, timestamp_ms))
                continue
            if batch:
                append(path, batch, batches)
                batch, batches = [], batches + 1
            if what == "beat":
                beat(path, b"%d" % number, writer=f"w{key}", query=f"q{key}")
            known_to = written[-1][0] if written else -1
            written += [record for record in logged(path) if record[0] > known_to]
            if what == "compact":
                before, now_ms = logged(path), timestamp_ms + later_ms
                end = state(path)[1]
                removed = compact(path, now_ms, lag_ms, retention_ms, spec)
                after, (_, end_after, floor) = logged(path), state(path)
                gone = sorted(set(before) - set(after))
                assert shown(spec, after) == shown(spec, before)
                assert set(after) <= set(before)
                assert removed == len(gone)
                assert end_after == end
                assert after[-1:] == before[-1:]
                # A version's timestamp says nothing of when it was written.
                assert all(
                    record[3] <= now_ms - lag_ms for record in gone if record[4] or spec.kind != "versioned"
                )
                # A replica at or beyond the floor ends up with the same content from what is left.
                for position in range(floor, end + 1):
                    had = [record for record in written if record[0] < position]
                    rest = [record for record in after if record[0] >= position]
                    assert shown(spec, had + rest) == shown(spec, written)


def test_a_session_expires_by_its_end(path: str) -> None:
    """However long ago it began."""

    def session(start: int, end: int) -> bytes:
        return b"a" + end.to_bytes(8, "big") + start.to_bytes(8, "big")

    append(path, [(session(*times), b"1", 100) for times in ((0, 1), (1, 9), (10, 12))])
    # Stream time is 12, and what ended before 8 is past a retention of 4.
    assert compact(path, now_ms=2 * DAY_MS, spec=SESSIONS) == 1
    assert [key for _, key, *_ in logged(path)] == [session(1, 9), session(10, 12)]


def test_values_that_expired_a_day_ago_are_removed(path: str) -> None:
    """A store without deletions forgets, too. What follows a young record stays, and so does the last."""
    expiring = replace(LATEST, ttl_ms=1_000)
    append(path, rows_of("a=1 b=1", timestamp_ms=0), 0)
    append(path, rows_of("c=1", timestamp_ms=1), 1)
    append(path, rows_of("d=1", timestamp_ms=0), 2)
    append(path, rows_of("e=1", timestamp_ms=2), 3)
    compact(path, now_ms=DAY_MS + 1_000, spec=expiring)
    assert [key for _, key, *_ in logged(path)] == [b"c", b"d", b"e"]
    compact(path, now_ms=DAY_MS + 999, spec=LATEST)
    assert [key for _, key, *_ in logged(path)] == [b"c", b"d", b"e"]
    compact(path, now_ms=2 * DAY_MS, lag_ms=2 * DAY_MS, spec=expiring)
    assert [key for _, key, *_ in logged(path)] == [b"c", b"d", b"e"]
    compact(path, now_ms=2 * DAY_MS, spec=expiring)
    assert [key for _, key, *_ in logged(path)] == [b"e"]
