"""What becomes of changes that the checkpoints among the fixtures do not have."""

import json
from dataclasses import replace

import pytest

from forebay_tap.conversion import open_conversion
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint.changes import ChangeBlock, StateEntry
from forebay_tap.spark_checkpoint.data_types import StructType
from tests.support.running_query import store

SECOND = 1_000_000
NOW_MS = 1_750_000_000_000


@pytest.fixture
def sessions(spark_4_0):
    """A conversion of sessions, that of ``a`` from 0 s to 30 s and from 50 s to 80 s in the state."""
    spec = store(kind="session", gap_ms=30_000, retention_ms=1_000_000)
    operator = spark_4_0.checkpoint("sessions-default").operator(0, 0)
    conversion = open_conversion(TableMapping(spec, operator))
    entries = [StateEntry("default", ("a", start * SECOND), value(start, start + 30)) for start in (0, 50)]
    assert len(list(conversion.load(entries, NOW_MS))) == 2
    return conversion


def value(start: int, end: int, count: int = 1) -> tuple[object, ...]:
    return ((start * SECOND, end * SECOND), "a", count, 0)


def put(start: int, end: int, count: int) -> tuple[object, ...]:
    return "put", ("a", start * SECOND), value(start, end, count)


def delete(start: int) -> tuple[object, ...]:
    return "delete", ("a", start * SECOND), None


def applied(conversion, *changes: tuple[object, ...]) -> dict[tuple[int, int], int | None]:
    """The counts of sessions by their start and end in seconds, None where they are deleted."""
    split = conversion.mapping.spec.stored_keys.split_changelog
    found = {}
    block = ChangeBlock(1, "default", *zip(*changes, strict=True))
    for _, log_key, text in conversion.apply([block], NOW_MS):
        end_ms, start_ms = split(log_key, 0).times_ms
        count = None if text is None else json.loads(text)["count"]
        found[start_ms // 1000, end_ms // 1000] = count
    return found


def test_merged_sessions_replace_both_in_the_log(sessions):
    """Two sessions that an event joins are deleted and the whole one is written."""
    assert applied(sessions, delete(50), put(0, 80, 3)) == {(0, 30): None, (50, 80): None, (0, 80): 3}


def test_a_session_that_the_watermark_closes_stays_in_the_log(sessions):
    assert applied(sessions, delete(0), put(50, 90, 2)) == {(50, 80): None, (50, 90): 2}


def test_a_session_that_is_removed_and_written_again_is_there(sessions):
    assert applied(sessions, delete(0), put(0, 30, 1)) == {(0, 30): 1}


def test_the_end_of_a_session_is_known_from_the_batch_before(sessions):
    assert applied(sessions, put(100, 130, 1)) == {(100, 130): 1}
    assert applied(sessions, put(90, 130, 2), delete(100)) == {(90, 130): 2, (100, 130): None}


def test_key_outside_the_codec_is_skipped_and_logged_once(spark_4_0, caplog):
    operator = spark_4_0.checkpoint("distinct-default").operator(0, 0)
    conversion = open_conversion(TableMapping(store(), operator))
    entries = [StateEntry("default", (key,), (None,)) for key in (None, "a", None)]
    assert [plain for plain, _, _ in conversion.load(entries, NOW_MS)] == [b"a"]
    assert caplog.text.count("'tapped' and is left out") == 1


def converted(spec, operator, key: tuple[object, ...]) -> list[bytes]:
    conversion = open_conversion(TableMapping(spec, operator))
    return [plain for plain, _, _ in conversion.load([StateEntry("default", key, (None,))], NOW_MS)]


def test_keys_of_the_codec_json_may_have_nulls(spark_4_0):
    operator = spark_4_0.checkpoint("distinct-default").operator(0, 0)
    assert converted(store(key="json"), operator, (None,)) == [b"[null]"]
    assert converted(store(key="json"), operator, ("é",)) == ['["é"]'.encode()]


@pytest.mark.parametrize(("codec", "plain"), [("string", b"all"), ("json", b"[]")])
def test_a_total_has_the_key_that_the_sink_gives_it(spark_4_0, codec, plain):
    operator = spark_4_0.checkpoint("distinct-default").operator(0, 0)
    [held] = operator.stores
    [family] = held.column_families
    without_key = replace(held, column_families=(replace(family, key=StructType(())),))
    assert converted(store(key=codec), replace(operator, stores=(without_key,)), ()) == [plain]


def test_a_key_with_a_timeout_but_no_state_is_not_in_the_store(spark_4_0):
    """``applyInPandasWithState`` may set a timeout without a state, or remove the state only."""
    mapping = TableMapping(store(), spark_4_0.checkpoint("pandas_state-default").operator(0, 0))
    conversion = open_conversion(mapping)
    with_state, without = ((3, "3 of a"), 60_000), (None, 60_000)
    loaded = conversion.load(
        [StateEntry("default", ("a",), with_state), StateEntry("default", ("b",), without)], NOW_MS
    )
    assert [(plain, json.loads(text)) for plain, _, text in loaded] == [(b"a", {"count": 3, "last": "3 of a"})]
    block = ChangeBlock(1, "default", ("put", "put"), (("a",), ("b",)), (without, with_state))
    records = [(plain, text and json.loads(text)) for plain, _, text in conversion.apply([block], NOW_MS)]
    assert records == [(b"a", None), (b"b", {"count": 3, "last": "3 of a"})]
