"""What a worker sends a router: pages and batches, or nothing of it."""

import msgpack
import pytest

from forebay.lag import Lag
from forebay.position import Position, encode_position, log_digest
from forebay.rest.batches import read_batch_frames
from forebay.rest.scans import ScanPage

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
        ScanPage.decode(msgpack.packb((*PAGE[:place], value, *PAGE[place + 1 :])))


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x93", b"x", msgpack.packb(PAGE)[:-3], msgpack.packb(5)])
def test_broken_frames_are_neither_page_nor_batch(raw):
    with pytest.raises(ValueError, match="other than a page"):
        ScanPage.decode(raw)
    with pytest.raises(ValueError, match="other than a batch"):
        read_batch_frames(raw, 1)


@pytest.mark.parametrize("frames", [([200], []), ([200, 200], [b"", b""]), (["200"], [b""]), ([200], ["x"]), 1])
def test_a_batch_of_other_results_than_requested_is_none(frames):
    with pytest.raises(ValueError, match="other than a batch"):
        read_batch_frames(msgpack.packb(frames), 1)
