from itertools import groupby
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.codecs.keys import KEY_CODECS
from forebay.store_kinds import STORE_KINDS
from forebay.stored_keys import (
    END_OF_USER_KEYS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    RESERVED_TAG,
    USER_TAG,
    LogicalKey,
    StoredKeys,
    successor,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=150)

TIMED_KINDS = ("window", "session", "versioned")
KINDS = ("key-value", *TIMED_KINDS)
WINDOWED_BYTES = StoredKeys(STORE_KINDS["window"], KEY_CODECS["bytes"])

# Few symbols, so that keys are often prefixes of each other and look like the escapes.
nasty_bytes = st.lists(st.sampled_from([0x00, 0x01, 0x02, 0xFE, 0xFF, 0x61]), max_size=4).map(bytes)
nasty_text = st.text(st.sampled_from("\x00\x01a\xff\U0001f6eb"), max_size=4)
plain_keys = {
    "string": nasty_text.map(str.encode),
    "bytes": nasty_bytes,
    "int32": st.integers(-(2**31), 2**31 - 1).map(lambda key: key.to_bytes(4, "big", signed=True)),
    "int64": (st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)).map(
        lambda key: key.to_bytes(8, "big", signed=True)
    ),
    **{
        name: st.lists(st.integers(-2, 2) | nasty_text, max_size=2).map(KEY_CODECS[name].from_json)
        for name in ("json", "avro")
    },
}
times_ms = st.integers(-3, 3) | st.sampled_from([MIN_TIME_MS, -256, 255, 256, 1 << 32, MAX_TIME_MS])


class Layout(NamedTuple):
    keys: StoredKeys
    entries: list[LogicalKey]


def layouts(kinds: tuple[str, ...], least: int = 0) -> st.SearchStrategy[Layout]:
    def of(kind_and_codec: tuple[str, str]) -> st.SearchStrategy[Layout]:
        kind, codec = kind_and_codec
        keys = StoredKeys(STORE_KINDS[kind], KEY_CODECS[codec])
        entry = st.builds(LogicalKey, plain_keys[codec], st.tuples(*[times_ms] * keys.times))
        return st.builds(Layout, st.just(keys), st.lists(entry, min_size=least, max_size=8, unique=True))

    return st.tuples(st.sampled_from(kinds), st.sampled_from(sorted(plain_keys))).flatmap(of)


def in_order(keys: StoredKeys, entry: LogicalKey) -> tuple[object, ...]:
    plain, times = entry
    fixed = keys.codec.fixed_size
    return (int.from_bytes(plain, "big", signed=True) if fixed else plain, *times)


def test_every_codec_is_laid_out_here() -> None:
    assert plain_keys.keys() == KEY_CODECS.keys()


@repeatable
@given(layouts(KINDS))
@example(Layout(WINDOWED_BYTES, [LogicalKey(k, (0,)) for k in (b"\0\xff", b"\0", b"")]))
def test_stored_order_is_the_order_of_keys_then_times(layout: Layout) -> None:
    keys, entries = layout
    by_storage = sorted(entries, key=lambda entry: keys.stored(entry.plain, *entry.times_ms))
    assert by_storage == sorted(entries, key=lambda entry: in_order(keys, entry))


@repeatable
@given(layouts(KINDS))
def test_a_stored_key_can_be_taken_apart(layout: Layout) -> None:
    keys, entries = layout
    for entry in entries:
        assert keys.parse(keys.stored(entry.plain, *entry.times_ms)) == entry
    stored = [keys.stored(entry.plain, *entry.times_ms) for entry in entries]
    assert keys.plains(stored) == [entry.plain for entry in entries]
    if keys.times:
        columns = keys.times_ms(stored)
        assert len(columns) == keys.times
        assert list(zip(*columns, strict=True)) == [entry.times_ms for entry in entries]


@repeatable
@given(layouts(TIMED_KINDS))
def test_one_keys_windows_never_interleave_with_anothers(layout: Layout) -> None:
    keys, entries = layout
    stored = sorted(keys.stored(entry.plain, *entry.times_ms) for entry in entries)
    runs = [plain for plain, _ in groupby(keys.parse(key).plain for key in stored)]
    assert len(runs) == len(set(runs))


@repeatable
@given(layouts(TIMED_KINDS, least=1))
def test_prefix_scan_covers_exactly_one_keys_entries(layout: Layout) -> None:
    keys, entries = layout
    wanted = entries[0].plain
    prefix = keys.prefix(wanted)
    for entry in entries:
        stored = keys.stored(entry.plain, *entry.times_ms)
        assert stored.startswith(prefix) == (entry.plain == wanted)
        assert (prefix <= stored < successor(prefix)) == (entry.plain == wanted)


@repeatable
@given(layouts(("session",), least=1))
def test_session_end_prefix_covers_exactly_its_sessions(layout: Layout) -> None:
    keys, entries = layout
    plain, (end, _) = entries[0]
    prefix = keys.stored(plain, end)
    for entry in entries:
        caught = keys.stored(entry.plain, *entry.times_ms).startswith(prefix)
        assert caught == (entry.plain == plain and entry.times_ms[0] == end)


@repeatable
@given(layouts(KINDS))
def test_user_keys_stay_apart_from_reserved_ones(layout: Layout) -> None:
    keys, entries = layout
    for entry in entries:
        stored = keys.stored(entry.plain, *entry.times_ms)
        assert not stored.startswith(RESERVED_TAG)
        assert USER_TAG <= stored < END_OF_USER_KEYS


@repeatable
@given(layouts(KINDS))
def test_changelog_record_keeps_its_key_and_times(layout: Layout) -> None:
    keys, entries = layout
    for plain, times in entries:
        in_key = times if keys.layout.name in ("window", "session") else ()
        changelog_key = plain + b"".join(time.to_bytes(8, "big", signed=True) for time in in_key)
        timestamp_ms = times[0] if keys.layout.name == "versioned" else 123
        assert keys.split_changelog(changelog_key, timestamp_ms) == (plain, times)
        assert keys.from_changelog(changelog_key, timestamp_ms) == keys.stored(plain, *times)


@repeatable
@given(layouts(KINDS), nasty_bytes)
def test_beginning_selects_exactly_the_keys_that_begin_so(layout: Layout, beginning: bytes) -> None:
    keys, entries = layout
    if keys.codec.fixed_size is not None:
        return
    for entry in entries:
        stored = keys.stored(entry.plain, *entry.times_ms)
        assert stored.startswith(keys.beginning(beginning)) == entry.plain.startswith(beginning)


def test_stored_times_keep_their_layout() -> None:
    """State directories last: other bytes for a time would lose what is stored."""
    keys = StoredKeys(STORE_KINDS["window"], KEY_CODECS["string"])
    assert keys.stored(b"a", 5) == b"\x01a\x00\x01" + bytes.fromhex("8000000000000005")


def test_windowed_changelog_keys_match_kafkas_layout() -> None:
    window = StoredKeys(STORE_KINDS["window"], KEY_CODECS["string"])
    assert window.split_changelog(b"AA" + (1000).to_bytes(8, "big"), 7) == (b"AA", (1000,))

    session = StoredKeys(STORE_KINDS["session"], KEY_CODECS["string"])
    end, start = (2000).to_bytes(8, "big"), (1000).to_bytes(8, "big")
    assert session.split_changelog(b"AA" + end + start, 7) == (b"AA", (2000, 1000))


@pytest.mark.parametrize(("kind", "size"), [("window", 7), ("session", 15), ("window", 0)])
def test_a_changelog_key_without_room_for_its_times_is_refused(kind: str, size: int) -> None:
    keys = StoredKeys(STORE_KINDS[kind], KEY_CODECS["string"])
    with pytest.raises(ValueError, match=f"{kind} changelog key of {size} bytes"):
        keys.from_changelog(bytes(size), 0)


@repeatable
@given(nasty_bytes, nasty_bytes)
@example(b"\xff\xff", b"\xff")
def test_the_successor_of_a_prefix_bounds_what_begins_with_it(key: bytes, more: bytes) -> None:
    prefix = USER_TAG + key
    assert prefix + more < successor(prefix)
    assert not successor(prefix).startswith(prefix)


@repeatable
@given(nasty_bytes, nasty_bytes)
def test_the_successor_of_a_prefix_lets_nothing_foreign_in(key: bytes, other: bytes) -> None:
    prefix, external = USER_TAG + key, USER_TAG + other
    assert (prefix <= external < successor(prefix)) == external.startswith(prefix)
