import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from forebay_tap.spark_checkpoint.aggregates import FINISHERS
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.errors import StateUnsupported

OPERATORS = (
    "aggregation",
    "windows",
    "sessions",
    "pandas_state",
    "distinct",
    "distinct_events",
    "distinct_within",
    "group_state",
)
WITH_CHANGES = (
    *(f"{operator}-{provider}" for operator in OPERATORS for provider in ("default", "changelog", "format2")),
    "aggregation-zstd",
    "aggregation-snappy",
)
WITHOUT_CHANGES = (*(f"{operator}-rocksdb" for operator in OPERATORS), "aggregation-format2_rocksdb")
LEDGERS = tuple(
    f"{query}-{provider}"
    for query in ("ledger", "scala_ledger")
    for provider in ("changelog", "format2", "rocksdb")
)
PARTITIONS = (0, 1)


def plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Decimal) else value


AGGREGATES = (
    ("count", 0, 1),
    ("sum", 1, 1),
    ("min", 2, 1),
    ("max", 3, 1),
    ("avg", 4, 2),
    ("first", 6, 2),
    ("last", 8, 2),
    ("stddev", 10, 3),
    ("variance", 13, 3),
    ("sum", 16, 1),
    ("max", 17, 1),
    ("sum", 18, 2),
)
"""The function, position and width of each that the query computes."""


def aggregated(value: tuple[Any, ...]) -> list[Any]:
    values = [FINISHERS[function].finish(value[at : at + width]) for function, at, width in AGGREGATES]
    return [str(item) if isinstance(item, Decimal) else item for item in values]


def comparable(query: str, key: Any, value: Any) -> tuple[str, Any]:
    """A key and value in the form of what the query put out."""
    match query:
        case "aggregation":
            value = aggregated(value)
        case "windows":
            value = [value[0], FINISHERS["avg"].finish(value[1:3])]
        case "sessions":
            value = [value[0][1], *value[2:]]
        case "distinct" | "distinct_events":
            value = []
    return json.dumps(plain(key)), plain(value)


def state_of(content: Any, query: str) -> dict[str, Any]:
    return dict(comparable(query, key, value) for _, key, value in content)


def close(state: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Equal but for the last digits of floating-point numbers."""
    return state.keys() == expected.keys() and all(alike(state[key], expected[key]) for key in state)


def alike(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12)
    return left == right


def changes(checkpoint: Checkpoint, partition: int, version: int) -> Iterator[tuple[str, str, Any, Any]]:
    """The kind, family, key and value of each change."""
    for block in checkpoint.change_blocks(0, partition, version):
        assert block.version == version
        for kind, key, value in zip(block.kinds, block.keys, block.values, strict=True):
            yield kind, block.family, key, value


def contents(checkpoint: Checkpoint, version: int) -> list[Any]:
    return [entry for partition in PARTITIONS for entry in checkpoint.snapshot(0, partition, version)]


@pytest.mark.parametrize("name", WITH_CHANGES + WITHOUT_CHANGES)
def test_a_snapshot_holds_what_the_query_put_out(written, name):
    checkpoint, query = written.checkpoint(name), name.partition("-")[0]
    expected = written.expected(name)
    assert checkpoint.batches() == list(range(len(expected)))
    for batch, state in enumerate(expected):
        assert close(state_of(contents(checkpoint, batch + 1), query), state), batch


@pytest.mark.parametrize("name", WITH_CHANGES)
def test_changes_lead_from_each_version_to_the_next(written, name):
    checkpoint, query = written.checkpoint(name), name.partition("-")[0]
    state: dict[str, Any] = {}
    for batch, expected in enumerate(written.expected(name)):
        for partition in PARTITIONS:
            for _, _, key, value in changes(checkpoint, partition, batch + 1):
                if value is None:
                    state.pop(json.dumps(plain(key)), None)
                else:
                    key, value = comparable(query, key, value)
                    state[key] = value
        assert close(state, expected), batch


@pytest.mark.parametrize("name", WITHOUT_CHANGES)
def test_rocksdb_that_uploads_snapshots_only_has_no_changes(written, name):
    with pytest.raises(StateUnsupported, match=r"changelogCheckpointing\.enabled=true"):
        list(changes(written.checkpoint(name), 0, 1))


def ledger(items: list[tuple[str, Any, Any]]) -> dict[str, Any]:
    """What the stateful processor's variables hold, by key, in the form of what it put out, and the expiries."""
    found: dict[str, Any] = {}
    for family, key, value in items:
        mapped = "by_second" in family
        name = json.dumps(plain(key[0] if mapped else key))
        held, expiries = found.setdefault(name, ({}, set()))
        rows = value if family.startswith("recent") else (value,)
        if family.endswith("_ttl"):
            expiries |= {row[1] for row in rows}
            rows = tuple(row[0] for row in rows)
        if mapped:
            held.setdefault(family, []).append([plain(key[1]), plain(rows[0])])
        else:
            held[family] = plain(rows) if family.startswith("recent") else plain(rows[0])
    return found


def expected_ledger(state: dict[str, Any]) -> dict[str, Any]:
    """Keys that hold nothing are not in a store."""
    named = {key: {name: value for name, value in held.items() if value} for key, (held, _) in state.items()}
    return {key: sorted_maps(held) for key, held in named.items() if held}


@pytest.mark.parametrize("name", LEDGERS)
def test_the_variables_of_a_stateful_processor(written, name):
    checkpoint = written.checkpoint(name)
    known_expiries: set[int] = set()
    for batch, state in enumerate(written.expected(name)):
        found = ledger(contents(checkpoint, batch + 1))
        known_expiries |= {expires_ms for _, expires_ms in state.values()}
        assert {key: sorted_maps(held) for key, (held, _) in found.items()} == expected_ledger(state)
        for _, expiries in found.values():
            # Each is the time of a batch that wrote the key, and an hour times a thousand.
            assert expiries
            assert expiries <= known_expiries


def sorted_maps(held: dict[str, Any]) -> dict[str, Any]:
    return {family: sorted(value) if "by_second" in family else value for family, value in held.items()}


@pytest.mark.parametrize("name", [name for name in LEDGERS if not name.endswith("rocksdb")])
def test_variable_changes_lead_to_the_next_version(written, name):
    checkpoint = written.checkpoint(name)
    for partition in PARTITIONS:
        state: dict[tuple[str, Any], Any] = {}
        for version in range(1, len(written.expected(name)) + 1):
            for kind, family, key, value in changes(checkpoint, partition, version):
                place = (family, key)
                if kind == "merge":
                    state[place] = state.get(place, ()) + value
                elif kind == "put":
                    state[place] = value
                else:
                    state.pop(place, None)
            content = {(family, key): value for family, key, value in checkpoint.snapshot(0, partition, version)}
            assert state == content


def test_a_query_that_writes_avro_is_refused_by_name(written):
    with pytest.raises(StateUnsupported, match=r"avro.*encodingFormat=unsaferow"):
        list(written.checkpoint("ledger-avro").snapshot(0, 0, 1))
