import json
import tomllib

import pytest
from click.testing import CliRunner

from forebay.cli import commands
from forebay.errors import TopologyError
from forebay.topology_file import parse_topology
from forebay_tap.spark_checkpoint.aggregates import FINISHERS, buffer_width, check_function, functions_at
from forebay_tap.spark_checkpoint.data_types import AtomicType, DecimalType, Field
from forebay_tap.spark_checkpoint.description import describe_operator, field_at
from forebay_tap.spark_checkpoint.errors import StateUnsupported

LONG, DOUBLE, BOOLEAN = AtomicType("long"), AtomicType("double"), AtomicType("boolean")


def described(written, name):
    return describe_operator(written.checkpoint(name).operator(0, 0))


def only_table(written, name):
    [table] = described(written, name).tables
    return table


def shape(fields):
    return [(field.name, str(field.type), field.path) for field in fields]


def test_an_aggregation_without_windows(written):
    table = only_table(written, "aggregation-default")
    assert (table.kind, table.key_codec, table.partitions, table.window_path) == ("key-value", "string", 2, None)
    assert shape(table.key) == [("key", "string", (0,))]
    fields = written.checkpoint("aggregation-default").operator(0, 0).store().family().value.fields
    widths = [buffer_width(field.functions[0], fields, *field.path) for field in table.value]
    assert [(field.path, field.functions, width) for field, width in zip(table.value, widths, strict=True)] == [
        ((0,), ("count",), 1),
        ((1,), ("sum",), 1),
        ((2,), ("min",), 1),
        ((3,), ("max",), 1),
        ((4,), ("avg", "sum"), 2),
        ((6,), ("first",), 2),
        ((8,), ("last",), 2),
        ((10,), ("stddev", "variance"), 3),
        ((13,), ("stddev", "variance"), 3),
        ((16,), ("sum",), 1),
        ((17,), ("max",), 1),
        ((18,), ("sum",), 2),
    ]


def test_an_aggregation_in_windows(written):
    table = only_table(written, "windows-changelog")
    assert (table.kind, table.key_codec) == ("window", "string")
    assert shape(table.key) == [("key", "string", (1,))]
    [entry, *_] = written.checkpoint("windows-changelog").snapshot(0, 1, 1)
    start, end = field_at(entry.key, table.window_path)
    assert end - start == 60_000_000


def test_sessions(written):
    table = only_table(written, "sessions-changelog")
    assert (table.kind, table.key_codec) == ("session", "string")
    assert shape(table.key) == [("key", "string", (0,))]
    assert [(field.name, field.path) for field in table.value] == [("count", (2,)), ("sum", (3,))]
    [entry, *_] = written.checkpoint("sessions-changelog").snapshot(0, 0, 1)
    start, end = field_at(entry.value, table.window_path)
    assert start == entry.key[1]
    assert end - start >= 30_000_000


def test_the_state_of_a_group(written):
    table = only_table(written, "pandas_state-default")
    assert shape(table.value) == [("count", "long", (0, 0)), ("last", "string", (0, 1))]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("distinct-default", ["key"], []),
        ("distinct_events-default", ["key", "at"], []),
        ("distinct_within-default", ["key"], ["expiresAtMicros"]),
    ],
)
def test_distinct_keys(written, name, key, value):
    table = only_table(written, name)
    assert [field.name for field in table.key] == key
    assert [field.name for field in table.value] == value
    assert table.key_codec == (None if "at" in key else "string")


def test_the_variables_of_a_stateful_processor(written):
    tables = {table.family: table for table in described(written, "ledger-changelog").tables}
    assert sorted(tables) == ["by_second", "by_second_ttl", "recent", "recent_ttl", "total", "total_ttl"]
    assert {name for name, table in tables.items() if table.is_list} == {"recent", "recent_ttl"}
    assert {name for name, table in tables.items() if table.expires_path} == {
        "by_second_ttl",
        "recent_ttl",
        "total_ttl",
    }
    assert shape(tables["by_second"].key) == [("key", "string", (0, 0)), ("second", "integer", (1, 0))]
    assert tables["by_second"].key_codec == "json"
    assert shape(tables["total"].value) == [("sum", "long", (0,)), ("last", "string", (1,))]
    assert shape(tables["total_ttl"].value) == [("sum", "long", (0, 0))]
    for entry in written.checkpoint("ledger-changelog").snapshot(0, 0, 1):
        table = tables[entry.family]
        rows = entry.value if table.is_list else (entry.value,)
        for row in rows:
            assert field_at(row, table.value[0].path) is not None
            assert table.expires_path is None or field_at(row, table.expires_path) > 1_700_000_000_000


def test_a_join_is_refused_with_its_reason(written):
    description = described(written, "joined-default")
    assert description.tables == ()
    assert "rows that wait for the other side" in str(description.refusal)


def test_sums_of_decimals_state_whether_there_is_any():
    fields = [Field("sum", DecimalType(20, 2)), Field("isEmpty", BOOLEAN), Field("count", LONG)]
    assert functions_at(fields, 0) == ("sum",)
    assert buffer_width("sum", fields, 0) == 2
    assert FINISHERS["sum"].finish((0, True)) is None
    assert FINISHERS["sum"].finish((5, False)) == 5
    # An average of decimals has no isEmpty, and digits of its own.
    assert functions_at([Field("sum", DecimalType(20, 2)), Field("count", LONG)], 0) == ("sum",)


def test_nothing_of_no_rows():
    assert FINISHERS["avg"].finish((0.0, 0)) is None
    assert FINISHERS["stddev"].finish((0.0, 0.0, 0.0)) is None
    assert FINISHERS["variance"].finish((1.0, 3.0, 0.0)) is None
    assert FINISHERS["variance"].finish((3.0, 2.0, 2.0)) == 1.0
    assert FINISHERS["stddev"].finish((5.0, 2.0, 16.0)) == 2.0
    assert FINISHERS["first"].finish((None, True)) is None


def test_a_function_that_does_not_fit_is_refused():
    fields = [Field("buf", AtomicType("binary")), Field("count", LONG)]
    with pytest.raises(StateUnsupported, match="Pass the field on as it is"):
        check_function("approx_count_distinct", fields, 0)
    with pytest.raises(StateUnsupported, match="avg needs the fields sum, count from position 1"):
        check_function("avg", fields, 1)
    check_function("count", fields, 1)
    assert functions_at(fields, 0) == ()


def run_describe(written, name, *options):
    result = CliRunner().invoke(commands, ["spark", "describe", str(written.path(name)), *options])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", ["aggregation-format2", "windows-default", "ledger-format2", "joined-default"])
def test_the_command_prints_what_a_checkpoint_holds(written, name):
    checkpoint = written.checkpoint(name)
    document = json.loads(run_describe(written, name, "--json"))
    assert document["checkpoint_id"] == checkpoint.id
    assert document["batches"] == {"first": 0, "last": checkpoint.batches()[-1]}
    assert document["format"] == (2 if "format2" in name else 1)
    text = run_describe(written, name)
    assert checkpoint.id in text
    [operator] = document["operators"]
    assert operator["label"] in text
    if name == "joined-default":
        assert operator["refusal"] in text
        return
    for table in operator["tables"]:
        assert table["topology"] in text
        assert all(field["name"] in text for field in table["key"] + table["value"])


def test_the_snippet_is_a_topology(written):
    for name, size in (("aggregation-default", None), ("windows-default", 60_000)):
        [table] = json.loads(run_describe(written, name, "--json"))["operators"][0]["tables"]
        document = tomllib.loads('application_id = "shop"\n' + table["topology"])
        [store] = parse_topology(document).stores.values()
        assert (store.kind, store.partitions, store.window_size_ms) == (table["kind"], 2, size)


def test_what_state_does_not_tell_has_to_be_filled_in(written):
    [table] = json.loads(run_describe(written, "sessions-default", "--json"))["operators"][0]["tables"]
    text = 'application_id = "shop"\n' + table["topology"]
    with pytest.raises(TopologyError, match="gap_ms"):
        parse_topology(tomllib.loads(text))
    assert parse_topology(tomllib.loads(text.replace("gap_ms = 0", "gap_ms = 1"))).stores


def test_rocksdb_without_changes_names_the_setting(written):
    assert "changelogCheckpointing.enabled=true" in run_describe(written, "aggregation-rocksdb")
    assert "changelogCheckpointing" not in run_describe(written, "aggregation-changelog")


def test_a_query_without_a_finished_batch_is_refused(copied):
    path = copied("aggregation-default")
    for file in (path / "commits").iterdir():
        file.unlink()
    result = CliRunner().invoke(commands, ["spark", "describe", str(path)])
    assert "no batch that has ended" in str(result.exception)
