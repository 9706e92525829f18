"""Keys of the state that a store cannot have are left out, and are no other key."""

import struct

import pytest

from forebay_tap.mapping import KeyEncoder, KeyUnfit
from forebay_tap.spark_checkpoint.data_types import AtomicType
from forebay_tap.spark_checkpoint.unsafe_row import RowDecoder
from tests.support.running_query import store

TEXT = (AtomicType("string"),)


def row(text: bytes) -> bytes:
    """A row of one string, as Spark writes it."""
    return struct.pack("<QII", 0, len(text), 16) + text + bytes(-len(text) % 8)


@pytest.mark.parametrize("codec", ["string", "json"])
def test_a_key_that_is_no_utf8_is_left_out(codec):
    encoder = KeyEncoder(store(key=codec), [(0,)])
    decoder = RowDecoder(TEXT, keeps_bytes=True)
    for damaged in (b"\xff", b"\xfe", b"a\xc3"):
        [key] = decoder.decode_all([row(damaged)], 0)
        assert key == decoder.decode(row(damaged))
        with pytest.raises(KeyUnfit):
            encoder.plain(key)
    whole = "\ufffd"
    assert whole.encode() in encoder.plain(decoder.decode(row(whole.encode())))


def test_a_value_that_is_no_utf8_is_as_spark_shows_it():
    assert RowDecoder(TEXT).decode(row(b"a\xff")) == ("a\ufffd",)
