import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.rest.answers import json_answer
from forebay.rest.json_parts import elements_of, json_answer_in_turns, json_parts, reading_json
from forebay.rest.turns import result_in_turns

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=60,
)


def lazy(value: Any) -> Any:
    """The same with an iterator for every list."""
    if isinstance(value, list):
        return map(lazy, value)
    return {name: lazy(member) for name, member in value.items()} if isinstance(value, dict) else value


@settings(max_examples=60, deadline=None, derandomize=True)
@given(JSON)
def test_parts_are_the_document(value):
    whole = json_answer(value).body
    assert b"".join(json_parts(value)) == whole
    document = {"rows": [value] * 20}
    assert asyncio.run(json_answer_in_turns(document)) == json_answer(document)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.dictionaries(st.text(max_size=3), SCALARS, max_size=3), max_size=40))
def test_rows_may_be_made_as_they_are_written(rows):
    assert b"".join(json_parts({"a": 1, "rows": iter(rows)})) == json_answer({"a": 1, "rows": rows}).body
    hosts = [{"host": "h", "rows": rows}, {"host": "i", "rows": []}]
    assert b"".join(json_parts(iter(hosts))) == json_answer(hosts).body


def read(text: str, depth: int) -> Any:
    return asyncio.run(result_in_turns(reading_json(" " * 20_000 + text, depth)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(JSON, st.integers(0, 4), st.sampled_from([None, 1]))
def test_a_long_document_is_read_as_a_short_one(value, depth, indent):
    assert read(json.dumps(value, indent=indent), depth) == value


@pytest.mark.parametrize("text", ["", "[1", "[1 2]", '{"a" 1}', '{"a": 1', "[1] 2", "[[1, 2]", "{", '{"a": [}'])
def test_what_is_no_document_is_refused(text):
    for depth in range(4):
        with pytest.raises(ValueError, match=r"."):
            read(text, depth)


@pytest.mark.parametrize("indent", [None, 1])
def test_elements_are_read_as_they_are_taken(indent):
    rows = [{"n": n} for n in range(3)]
    text = json.dumps({"a": [1, {"rows": 2}], "b": {}, "rows": rows, "c": 1}, indent=indent)
    assert list(elements_of(text, "rows")) == rows
    assert list(elements_of(text, "none")) == []
