"""Keys made of whole columns are those that a reader's keys become one by one."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.codecs.keys import KEY_CODECS

pytestmark = pytest.mark.spark

SAFE = 2**53 - 1
SPARK_TYPES = {
    "string": st.text(max_size=6) | st.sampled_from(['"', "\\", "\x00", "\x1f", "\x7f", "é", "\u2028", "😀"]),
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-SAFE, SAFE),
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of types, and rows of them with nulls."""
    names = draw(st.lists(st.sampled_from(sorted(SPARK_TYPES)), min_size=1, max_size=3))
    row = st.tuples(*(st.none() | SPARK_TYPES[name] for name in names))
    return names, draw(st.lists(row, max_size=8))


def made(names: list[str], listed: list[tuple[Any, ...]], skipped: int = 0) -> list[bytes]:
    import pyarrow as pa

    from forebay_spark.json_keys import json_keys

    columns = [[row[i] for row in listed] for i in range(len(names))]
    types = [pa.type_for_alias(name) for name in names]
    parts = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    keys: list[bytes] = json_keys([part.slice(skipped) for part in parts]).to_pylist()
    return keys


@settings(derandomize=True, deadline=None, max_examples=150)
@given(rows(), st.integers(0, 2))
@example((["string"], [("plain",), ('"',)]), 0)
@example((["int64", "bool"], [(SAFE, True), (-SAFE, None)]), 0)
def test_json_keys_are_the_codecs_whatever_their_types(drawn: Any, skipped: int) -> None:
    names, listed = drawn
    codec = KEY_CODECS["json"]
    assert made(names, listed, skipped) == [codec.from_json(list(row)) for row in listed[skipped:]]


@pytest.mark.parametrize("number", [SAFE + 1, -SAFE - 1, -(2**63)])
def test_an_unsafe_integer_is_refused_with_its_row(number: int) -> None:
    from forebay_spark.json_keys import UnsafeInteger

    with pytest.raises(UnsafeInteger) as caught:
        made(["string", "int64"], [("a", 1), ("b", number)])
    assert caught.value.row == ("b", number)
