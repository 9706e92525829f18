"""Every kind has all that the layers ask of it, in its module and in their tables."""

import dataclasses
from typing import get_args

import pytest

from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.store_spec import StoreSpec
from forebay.stored_keys import KeyLayout
from forebay.wire.scans import SCAN_ROUTES
from forebay_changelog.sqlite.compaction import COMPACTABLE
from forebay_client.query_command import query
from forebay_client.results import ITEM_TYPES
from forebay_spark.kind_columns import KIND_COLUMNS
from forebay_tap.conversion import CONVERSIONS
from forebay_tap.spark_checkpoint.description import TableKind

LAYOUTS = [
    layout
    for kind in STORE_KINDS.values()
    for layout in (kind, kind.with_latest_by, kind.with_schema_keys)
    if layout is not None
]
WRITTEN_BY_OTHERS = {kind.with_schema_keys.layout_name for kind in STORE_KINDS.values() if kind.with_schema_keys}
MEMBERS = [*KeyLayout.__annotations__, *StoreKind.__annotations__]


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.layout_name)
def test_a_kind_has_every_member_and_no_state(kind):
    assert [name for name in MEMBERS if not hasattr(kind, name)] == []
    assert vars(kind) == {}


def test_each_layout_has_a_name_of_its_own():
    """Stores on disk are rebuilt by it."""
    assert len({kind.layout_name for kind in LAYOUTS}) == len(LAYOUTS)


@pytest.mark.parametrize(
    ("table", "without"), [(COMPACTABLE, set()), (KIND_COLUMNS, WRITTEN_BY_OTHERS)], ids=["compaction", "columns"]
)
def test_a_table_by_layout_has_every_kind(table, without):
    assert table.keys() == {kind.layout_name for kind in LAYOUTS} - without


def test_a_spark_state_becomes_any_kind_without_history():
    kinds = {kind.name for kind in STORE_KINDS.values() if not kind.keeps_versions}
    assert CONVERSIONS.keys() == set(get_args(TableKind)) == kinds


@pytest.mark.parametrize("kind", STORE_KINDS.values(), ids=lambda kind: kind.name)
def test_a_client_has_a_class_for_what_is_listed(kind):
    assert ITEM_TYPES[kind.name].__match_args__ == (
        "key",
        *kind.time_names,
        "value",
        "timestamp_ms",
        "schema_id",
        "headers",
        *(kind.with_schema_keys.time_names if kind.with_schema_keys else ()),
    )


def test_each_list_of_a_key_has_an_option_of_query():
    flags = {parameter.name for parameter in query.params if getattr(parameter, "is_flag", False)}
    assert {route.items for route in SCAN_ROUTES if route.keyed} <= flags


@pytest.mark.parametrize("kind", STORE_KINDS.values(), ids=lambda kind: kind.name)
def test_a_store_has_a_field_for_each_duration(kind):
    assert kind.durations <= {field.name for field in dataclasses.fields(StoreSpec)}
