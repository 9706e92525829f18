import base64
import json
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.codecs.values import VALUE_CODECS

repeatable = settings(derandomize=True, deadline=None, max_examples=150)


@repeatable
@given(st.text(max_size=20))
def test_a_string_value_is_shown_as_json_text(value: str) -> None:
    assert json.loads(VALUE_CODECS["string"].to_json(value.encode())) == value


@repeatable
@given(st.integers(-(2**63), 2**63 - 1))
def test_an_int64_value_is_shown_exactly(value: int) -> None:
    assert json.loads(VALUE_CODECS["int64"].to_json(value.to_bytes(8, "big", signed=True))) == value


@repeatable
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_value_is_shown_exactly(value: float) -> None:
    assert json.loads(VALUE_CODECS["double"].to_json(struct.pack(">d", value))) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_double_that_json_does_not_have_is_null(value: float) -> None:
    assert VALUE_CODECS["double"].to_json(struct.pack(">d", value)) == b"null"


@repeatable
@given(st.binary(max_size=20))
def test_a_bytes_value_is_shown_as_padded_base64(value: bytes) -> None:
    assert base64.b64decode(json.loads(VALUE_CODECS["bytes"].to_json(value)), validate=True) == value


def test_a_json_value_is_shown_byte_for_byte() -> None:
    stored = b'{"b": 1.10, "a":[ ]}'
    assert VALUE_CODECS["json"].to_json(stored) == stored
