"""Texts are JSON or not, whatever their depth and the length of their numbers."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay import json_text
from forebay.json_text import all_json, json_fault

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
BAD = [
    b"",
    b" ",
    b"nan",
    b"NaN",
    b"Infinity",
    b"01",
    b"1.",
    b"-",
    b"1 2",
    b'1,"lag":{}',
    b'{"a":1',
    b'{"a":1}x',
    b'{"a" 1}',
    b"{1:2}",
    b"[1,]",
    b"[,1]",
    b"]",
    b'"a',
    b'"\\x"',
    b'"\x01"',
    b'"\xff"',
    b"tru",
]
GOOD = [
    b" 1 ",
    b"1e400",
    b"1" * 5_000,
    b"[]",
    b"{}",
    b'{"a":[1,{"b":null}]}',
    b'"\\u00e9"',
    b'"\\ud800"',
    '"é"'.encode(),
]
DEEP = (b"[" * 5_000, b"]" * 5_000)


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_json_is_refused_at_any_depth(text):
    assert json_fault(text) is not None
    assert not all_json([b"1", text])
    opened, closed = DEEP
    assert json_fault(opened + text + closed) is not None or text.strip() == b""


@pytest.mark.parametrize("text", GOOD)
def test_json_is_accepted_at_any_depth(text):
    opened, closed = DEEP
    for each in (text, opened + text + closed):
        assert json_fault(each) is None
        assert all_json([each, b"1", each])


def test_texts_do_not_complete_each_other():
    assert not all_json([b"[1", b"2]"])
    assert not all_json([b'"a', b'b"', b"1,2"])
    assert not all_json([b'"\xc3', b'\xa9"'])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(VALUES, st.data())
def test_both_scanners_agree_with_python(value, data):
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    cut = data.draw(st.integers(0, len(text)))
    for each in (text, text[:cut], text[cut:], text[:cut] + b"," + text[cut:]):
        try:
            json.loads(each.decode(), parse_constant=lambda name: int(name))
            is_json = True
        except ValueError:
            is_json = False
        assert (json_fault(each) is None) == is_json
        if is_text(each):
            assert json_text._is_json(each) == is_json


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
