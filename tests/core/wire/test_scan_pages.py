"""Pages and batches that a worker sends a router, or nothing of it, and how pages become one list."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.lag import Lag
from forebay.position import Position, encode_position, log_digest
from forebay.wire import scan_pages
from forebay.wire.batches import read_batch_frames
from forebay.wire.scan_pages import ScanPage, merge, window_end

SOURCE = {
    "partition": 0,
    "position": encode_position(Position(log_digest("log"), {0: 1})),
    "role": "active",
    "host": "h:1",
    "lag": Lag(0, None, 1).document(),
}
PAGE = ([b"k"], [b"1"], False, SOURCE, b"k")


def test_a_page_comes_back_as_it_was():
    assert ScanPage.decode(ScanPage(*PAGE).encode()) == ScanPage(*PAGE)


@pytest.mark.parametrize(
    "bad",
    [
        (0, [1]),
        (0, [b"k", b"l"]),
        (1, ["x"]),
        (2, 1),
        (3, {}),
        (3, {**SOURCE, "lag": {"record_lag": "x", "time_lag_ms": 0, "age_ms": 0}}),
        (3, {**SOURCE, "position": "nonsense"}),
        (3, {**SOURCE, "partition": "0"}),
        (4, "k"),
    ],
)
def test_a_page_with_anything_else_in_it_is_none(bad):
    place, value = bad
    with pytest.raises(ValueError, match=r"other than a page"):
        ScanPage.decode(msgspec.msgpack.encode((*PAGE[:place], value, *PAGE[place + 1 :])))


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x93", b"x", msgspec.msgpack.encode(PAGE)[:-3], msgspec.msgpack.encode(5)]
)
def test_broken_frames_are_neither_page_nor_batch(raw):
    with pytest.raises(ValueError, match="other than a page"):
        ScanPage.decode(raw)
    with pytest.raises(ValueError, match="other than a batch"):
        read_batch_frames(raw, 1)


@pytest.mark.parametrize("frames", [([200], []), ([200, 200], [b"", b""]), (["200"], [b""]), ([200], ["x"]), 1])
def test_a_batch_of_other_results_than_requested_is_none(frames):
    with pytest.raises(ValueError, match="other than a batch"):
        read_batch_frames(msgspec.msgpack.encode(frames), 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    keys=st.lists(st.binary(min_size=1, max_size=2), unique=True, max_size=40),
    partitions=st.integers(1, 4),
    size=st.integers(1, 7),
    at_once=st.integers(1, 12),
    reverse=st.booleans(),
)
def test_pages_of_any_partitions_become_one_list_in_order(keys, partitions, size, at_once, reverse):
    """Pages that end at different keys, such as where values are large in one partition alone."""
    rest = [sorted(keys[p::partitions], reverse=reverse) for p in range(partitions)]
    pages = [ScanPage(more=True) for _ in rest]
    listed: list[bytes] = []
    bound: bytes | None = b""
    while bound is not None:
        for page, left in zip(pages, rest, strict=True):
            if page.more and not page.keys:
                page.keys, left[:] = left[: size + len(left) % 3], left[size + len(left) % 3 :]
                page.items, page.more, page.last = list(page.keys), bool(left), (page.keys or [b""])[-1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scan_pages, "_MERGED_AT_ONCE", at_once)
            patch.setattr(scan_pages, "_MIN_OF_A_PAGE", 1)
            bound = window_end(pages, reverse=reverse)
        items, key_at = merge([page.take_to(bound, reverse=reverse) for page in pages], reverse=reverse)
        assert len(items) <= max(at_once, partitions)
        assert [key_at(place) for place in range(len(items))] == items
        listed += items
    assert listed == sorted(keys, reverse=reverse)
