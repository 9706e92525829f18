"""The decoder of rows against Spark's own, for every type."""

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay_tap.spark_checkpoint.data_types import parse_struct
from forebay_tap.spark_checkpoint.unsafe_row import RowDecoder, RowMalformed

pytestmark = pytest.mark.spark

EPOCH = datetime.datetime(1970, 1, 1)
SPARK_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(max_size=20),
    "binary": st.binary(max_size=20),
    "decimal(18,3)": st.integers(-(10**18) + 1, 10**18 - 1).map(lambda number: Decimal(number).scaleb(-3)),
    "decimal(38,0)": st.integers(-(10**37), 10**37).map(Decimal),
    "date": st.dates(datetime.date(1900, 1, 1)),
    "timestamp": st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2200, 1, 1)),
    "timestamp_ntz": st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(9000, 1, 1)),
    "interval day to second": st.timedeltas(datetime.timedelta(days=-10_000), datetime.timedelta(days=10_000)),
    "void": st.none(),
}
KEYS = ("int", "string", "bigint")


def any_type(depth: int) -> st.SearchStrategy[tuple[str, st.SearchStrategy[Any]]]:
    """A type in Spark's words, and its values."""
    plain = st.sampled_from(sorted(SPARK_TYPES.items()))
    if depth == 0:
        return plain
    inner = any_type(depth - 1)

    def array(item: tuple[str, st.SearchStrategy[Any]]) -> tuple[str, st.SearchStrategy[Any]]:
        return f"array<{item[0]}>", st.lists(nullable(item[1]), max_size=4)

    def mapping(key: str, item: tuple[str, st.SearchStrategy[Any]]) -> tuple[str, st.SearchStrategy[Any]]:
        return f"map<{key},{item[0]}>", st.dictionaries(SPARK_TYPES[key], nullable(item[1]), max_size=4)

    def struct(items: list[tuple[str, st.SearchStrategy[Any]]]) -> tuple[str, st.SearchStrategy[Any]]:
        fields = ",".join(f"f{at}:{name}" for at, (name, _) in enumerate(items))
        return f"struct<{fields}>", st.tuples(*[nullable(values) for _, values in items])

    structs = st.lists(inner, min_size=1, max_size=4).map(struct)
    return st.one_of(plain, inner.map(array), st.builds(mapping, st.sampled_from(KEYS), inner), structs)


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, st.none())


@st.composite
def tables(draw: st.DrawFn, fewest: int = 1, most: int = 6) -> tuple[str, list[tuple[Any, ...]]]:
    columns = draw(st.lists(any_type(2), min_size=fewest, max_size=most))
    row = st.tuples(*[nullable(values) for _, values in columns])
    schema = ", ".join(f"c{at} {name}" for at, (name, _) in enumerate(columns))
    return schema, draw(st.lists(row, min_size=1, max_size=3))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def rows_of(frame: Any) -> list[bytes]:
    """The frame's rows as Spark writes them."""
    return [bytes(row.getBytes()) for row in frame._jdf.queryExecution().executedPlan().executeCollect()]


def physical(value: Any) -> Any:
    """A value that was written, in the form in which the decoder gives it."""
    match value:
        case datetime.datetime():
            return (value - EPOCH) // datetime.timedelta(microseconds=1)
        case datetime.date():
            return (value - EPOCH.date()).days
        case datetime.timedelta():
            return value // datetime.timedelta(microseconds=1)
        case bytearray():
            return bytes(value)
        case dict():
            return {key: physical(item) for key, item in value.items()}
        case list() | tuple():
            return tuple(map(physical, value))
    return value


def same(decoded: Any, written: Any) -> bool:
    if isinstance(written, dict):
        pairs = dict(decoded)
        return len(decoded) == len(written) and all(same(pairs[key], item) for key, item in written.items())
    if isinstance(written, tuple):
        return len(decoded) == len(written) and all(map(same, decoded, written))
    if isinstance(written, float) and math.isnan(written):
        return math.isnan(decoded)
    return type(decoded) is type(written) and decoded == written


def all_decoded(decoder: RowDecoder, data: list[bytes]) -> list[tuple[Any, ...]]:
    """The rows decoded one by one, which those that are decoded together have to equal."""
    decoded = [decoder.decode(row) for row in data]
    # As text, in which NaN equals itself.
    assert repr(decoder.decode_all([b"x" + row for row in data], 1)) == repr(decoded)
    return decoded


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(table=tables())
def test_every_type_is_decoded_as_spark_wrote_it(spark, table):
    schema, rows = table
    frame = spark.createDataFrame(rows, schema, verifySchema=False)
    decoder = RowDecoder(parse_struct(frame.schema.jsonValue()).types)
    for decoded, row in zip(all_decoded(decoder, rows_of(frame)), rows, strict=True):
        assert same(decoded, physical(row)), (schema, decoded, row)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(table=tables(fewest=63, most=70))
def test_rows_with_more_than_64_fields_have_more_null_bits(spark, table):
    schema, rows = table
    frame = spark.createDataFrame(rows, schema, verifySchema=False)
    decoder = RowDecoder(parse_struct(frame.schema.jsonValue()).types)
    for decoded, row in zip(all_decoded(decoder, rows_of(frame)), rows, strict=True):
        assert same(decoded, physical(row))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("make_interval(1, 2, 0, 3, 0, 0, 4.5)", (14, 3, 4_500_000)),
        ("interval '2-3' year to month", 27),
        ("interval '-1' month", -1),
        ("array(interval '2-3' year to month, null)", (27, None)),
        ("array(make_interval(0, 1), null)", ((1, 0, 0), None)),
        ("interval '1 02:03:04.000005' day to second", 93_784_000_005),
        ("cast('ab' as char(4))", "ab"),
        ("timestamp '9999-12-31 23:59:59.999999'", 253_402_300_799_999_999),
        ("timestamp '-0100-01-01 00:00:00'", int(np.datetime64("-0100-01-01", "us").astype(int))),
        ("cast(x'ff41' as string)", "\ufffdA"),
        ("map()", ()),
        ("array()", ()),
        ("cast(-0.05 as decimal(5, 2))", Decimal("-0.05")),
        ("cast(-12345678901234567890.5 as decimal(30, 1))", Decimal("-12345678901234567890.5")),
    ],
)
def test_values_that_python_cannot_hand_to_spark(spark, expression, value):
    frame = spark.sql(f"SELECT {expression} AS only, 7L AS after")
    [data] = rows_of(frame)
    assert RowDecoder(parse_struct(frame.schema.jsonValue()).types).decode(data) == (value, 7)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(table=tables(), cut=st.integers(1, 200))
def test_truncated_row_is_never_read_beyond_its_end(spark, table, cut):
    """A row that was cut short is refused or decoded from what is there."""
    schema, rows = table
    frame = spark.createDataFrame(rows, schema, verifySchema=False)
    decoder = RowDecoder(parse_struct(frame.schema.jsonValue()).types)
    fixed_bytes = 8 + 8 * len(frame.columns)
    for data in rows_of(frame):
        shorter = data[:-cut]
        if len(shorter) < fixed_bytes:
            with pytest.raises(RowMalformed):
                decoder.decode(shorter)
            with pytest.raises(RowMalformed):
                decoder.decode_all([data, shorter], 0)
