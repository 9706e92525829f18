"""A store is filled from a checkpoint only if the query writes what its state holds."""

import re
from typing import Any

import pytest

from forebay_tap.mapping import TableMapping
from tests.support.running_query import store

pytestmark = pytest.mark.spark

COUNTED = {"fields": [{"name": "n", "position": 0, "function": "count"}]}
PAIR = ("key", "second")
BY_SECOND = {"key": "json", "spark_state": {"variable": "by_second"}}


def mismatch(
    written: Any, name: str, spec: Any, columns: dict[str, str], mode: str = "update", **changed: Any
) -> str | None:
    """What is found of a query with some columns and their types, the key's first."""
    from pyspark.sql import types as T

    from forebay_spark.columns import Layout, Selection
    from forebay_spark.sink_writer import state_mismatch

    kinds = {
        "string": T.StringType(),
        "int": T.IntegerType(),
        "long": T.LongType(),
        "double": T.DoubleType(),
        "struct": T.StructType().add("last", T.StringType()).add("count", T.LongType()),
        "list": T.ArrayType(T.StructType().add("n", T.LongType())),
    }
    schema = T.StructType([T.StructField(column, kinds[kind]) for column, kind in columns.items()])
    key, *value = columns
    layout = Layout(spec, Selection.of({"key": key, **changed}), schema, None, tuple(value))
    return state_mismatch(TableMapping(spec, written.checkpoint(name).operator(0, 0)), layout, mode)


@pytest.mark.parametrize(
    ("name", "fields", "columns", "changed"),
    [
        ("aggregation-default", {"spark_state": COUNTED}, {"Key": "string", "n": "int"}, {}),
        ("pandas_state-default", {}, {"key": "string", "last": "string", "count": "long"}, {}),
        ("pandas_state-default", {}, {"key": "string", "state": "struct"}, {"flatten": True}),
        (
            "ledger-changelog",
            {"spark_state": {"variable": "recent"}},
            {"key": "string", "recent": "list"},
            {"flatten": True},
        ),
        ("ledger-changelog", BY_SECOND, {"key": "string", "n": "long"}, {"key": PAIR}),
        ("ledger-changelog", BY_SECOND, {"key": "string", "n": "long"}, {"key": PAIR, "null_keys": "keep"}),
    ],
)
def test_store_with_the_querys_own_form_is_filled(spark_4_0, name, fields, columns, changed):
    assert mismatch(spark_4_0, name, store(**fields), columns, **changed) is None


@pytest.mark.parametrize(
    ("name", "fields", "columns", "changed", "words"),
    [
        (
            "aggregation-default",
            {"spark_state": COUNTED},
            {"k": "string", "n": "long"},
            {},
            "key key, but .* key k",
        ),
        (
            "ledger-changelog",
            BY_SECOND,
            {"key": "string", "n": "long"},
            {"key": PAIR[::-1]},
            r"key key, second, but the query writes the key second, key\. Name the same columns",
        ),
        (
            "aggregation-default",
            {"spark_state": COUNTED},
            {"key": "string", "n": "long"},
            {"flatten": True},
            r"values of struct<n:long>, but the query writes long",
        ),
        (
            "ledger-changelog",
            {"spark_state": {"variable": "recent"}},
            {"key": "string", "n": "long"},
            {},
            r"values of array<struct<n:long>>, but the query writes struct<n:long>",
        ),
        (
            "aggregation-default",
            {"spark_state": COUNTED},
            {"key": "string", "n": "string"},
            {},
            r"struct<n:long>, but the query writes struct<n:string>",
        ),
        (
            "aggregation-default",
            {"spark_state": {"fields": [{"name": "n", "position": 4, "function": "avg"}]}},
            {"key": "string", "n": "long"},
            {},
            r"struct<n:double>, but the query writes struct<n:long>",
        ),
        (
            "aggregation-default",
            {"spark_state": COUNTED},
            {"key": "string", "total": "long"},
            {},
            r"struct<n:long>, but the query writes struct<total:long>\. Declare the fields",
        ),
        (
            "aggregation-default",
            {"spark_state": COUNTED},
            {"key": "string", "n": "long"},
            {"mode": "append"},
            "'append' results that are final have left its state.* a new checkpoint",
        ),
        (
            "aggregation-default",
            {"spark_state": COUNTED},
            {"key": "string", "n": "long"},
            {"delete": "gone"},
            "'gone' deletes keys that its state keeps. Leave out delete=",
        ),
        (
            "ledger-changelog",
            BY_SECOND,
            {"key": "string", "n": "long"},
            {"key": PAIR, "null_keys": "drop"},
            "Set null_keys='keep'",
        ),
    ],
)
def test_store_that_would_mix_two_forms_is_not_filled(spark_4_0, name, fields, columns, changed, words):
    found = mismatch(spark_4_0, name, store(**fields), columns, **changed)
    assert found is not None
    assert re.search(words, found), found
