"""Values of the state have the JSON that ``docs/spark.md`` states, which the sink is tested with, too."""

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay_tap.json_forms import json_form
from forebay_tap.spark_checkpoint.data_types import parse_type
from forebay_tap.spark_checkpoint.errors import StateUnsupported

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
NOON_US = 1_785_585_600_123_456
"""2026-08-01 12:00:00.123456Z, as the state keeps it."""
IN_STATE: dict[str, tuple[Any, Any]] = {
    "boolean": ("boolean", True),
    "tinyint": ("byte", 1),
    "smallint": ("short", 1),
    "int": ("integer", -5),
    "bigint": ("long", 9007199254740991),
    "float": ("float", 0.5),
    "double": ("double", 0.1),
    "decimal(20,2)": ("decimal(20,2)", Decimal("123456789012345678.90")),
    "string": ("string", "é"),
    "binary": ("binary", b"hi"),
    "date": ("date", 20_666),
    "timestamp": ("timestamp", NOON_US),
    "timestamp_ntz": ("timestamp_ntz", NOON_US),
    "array<int>": ({"type": "array", "elementType": "integer", "containsNull": True}, (1, None)),
    "map<string,int>": ({"type": "map", "keyType": "string", "valueType": "integer"}, (("a", 1),)),
    "struct<a:int,b:string>": (
        {"type": "struct", "fields": [{"name": "a", "type": "integer"}, {"name": "b", "type": "string"}]},
        (1, None),
    ),
}


def documented() -> dict[str, str]:
    """The JSON of a value by type, of the first row of each."""
    rows: dict[str, str] = {}
    for line in PAGE.read_text().partition("## Types")[2].splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows.setdefault(cells[0], cells[2])
    return rows


def encoded(kind: Any, value: Any) -> str:
    form = json_form(parse_type(kind))
    formed = value if form is None or value is None else form(value)
    return msgspec.json.Encoder(decimal_format="number").encode(formed).decode()


@pytest.mark.parametrize("name", IN_STATE)
def test_a_type_has_the_json_that_is_documented(name):
    assert encoded(*IN_STATE[name]) == documented()[name]


def test_every_documented_type_is_tried():
    assert documented().keys() == IN_STATE.keys() | {"void"}
    assert encoded("void", None) == documented()["void"]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("double", math.nan, '"NaN"'),
        ("double", math.inf, '"Infinity"'),
        ("float", -math.inf, '"-Infinity"'),
        # 32 bits have no more digits than this.
        ("float", 0.10000000149011612, "0.1"),
        ("date", -719_529, '"-0001-12-31"'),
        ("date", 2_932_897, '"+10000-01-01"'),
        ("timestamp", 253_402_300_800_000_000, '"+10000-01-01T00:00:00.000000Z"'),
        ("timestamp", -1, '"1969-12-31T23:59:59.999999Z"'),
        ("time(6)", 43_200_000_001_000, '"12:00:00.000001"'),
        ({"type": "map", "keyType": "boolean", "valueType": "double"}, ((True, math.nan),), '{"true":"NaN"}'),
    ],
)
def test_values_that_json_has_no_form_for_have_that_of_spark(kind, value, text):
    assert encoded(kind, value) == text
    json.loads(text)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("interval day to second", "day-time interval"),
        ({"type": "map", "keyType": "double", "valueType": "integer"}, "keys of the type double"),
        (
            {"type": "struct", "fields": [{"name": "a", "type": "integer"}, {"name": "a", "type": "string"}]},
            "two fields 'a'",
        ),
    ],
)
def test_a_type_without_a_json_form_is_refused_by_its_name(kind, words):
    with pytest.raises(StateUnsupported, match=words):
        json_form(parse_type(kind))
