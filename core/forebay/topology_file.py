"""Reads ``topology.toml``; each error names the file, the place and the remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from forebay.codecs.keys import KEY_CODECS, AvroKey
from forebay.codecs.values import SCHEMA_VALUE_CODECS, VALUE_CODECS
from forebay.errors import TopologyError
from forebay.file_access import cause
from forebay.store_kinds import STORE_KINDS
from forebay.store_spec import DELETE, KEEP, SparkState, StateColumn, StoreSpec, find_partitioner
from forebay.toml_tables import check_table, field_of, name_of, one_of, whole_number
from forebay.topology import SubTopology, Topology

KINDS = tuple(STORE_KINDS)
STORE_ENTRY_POINTS = "forebay.stores"
_DURATIONS = sorted({name for kind in STORE_KINDS.values() for name in kind.durations})
_NAME = name_of(200)
_BOOLEAN = field_of(bool, "true or false")

_TOPOLOGY = {
    "application_id": _NAME,
    "subtopology": field_of(list[Any], "at least one [[subtopology]]", min_length=1),
}
_SUB_TOPOLOGY = {
    "name": _NAME,
    # More are probably a typing error, and each would be a file or a topic's partition.
    "partitions": whole_number(1, 65_536),
    "global": _BOOLEAN,
    "store": field_of(list[Any], "at least one [[subtopology.store]]", min_length=1),
}
_ROCKSDB_OPTIONS = {
    "compression": one_of(("lz4", "zstd", "none")),
    "block_size_bytes": whole_number(1_024, 1 << 20),
    "bloom_bits_per_key": whole_number(0, 30),
}
_STORE = {
    "name": _NAME,
    "kind": one_of(KINDS),
    "key": one_of(KEY_CODECS),
    "value": one_of(VALUE_CODECS),
    "partitioner": field_of(str, "the name of a partitioner"),
    "topic": name_of(249),
    "supplier": field_of(str, "the name of a store supplier"),
    "latest_by": field_of(str, "the name of a column", min_length=1),
    "on_bad_value": one_of(("stop", "skip")),
    "spark_state": field_of(dict[str, Any], "a table"),
    **dict.fromkeys(_DURATIONS, whole_number(1)),
    **dict.fromkeys(("max_record_lag", "max_time_lag_ms", "max_age_ms"), whole_number(0)),
    **dict.fromkeys(("external", "record_headers", "accept_uncompacted", "accept_misplaced"), _BOOLEAN),
    **_ROCKSDB_OPTIONS,
}
_SPARK_STATE = {
    "operator": whole_number(0),
    "variable": _NAME,
    "fields": field_of(list[Any], "a list of tables"),
    "on_removal": one_of((KEEP, DELETE)),
}
_COLUMN = {
    "name": field_of(str, "the member of the store's values", min_length=1),
    # With those of the structs around it before.
    "position": field_of(
        whole_number(0) | field_of(str, "positions", pattern=r"\A[0-9]+(\.[0-9]+)*\Z"),
        "as 'forebay spark describe' shows it, such as 2 or \"0.2\"",
    ),
    "function": field_of(str, "the name of an aggregate"),
}


def load_topology(path: str | Path) -> Topology:
    """Read a topology file; raises ``TopologyError`` naming the file, the place and the remedy."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"The topology {path} cannot be read: {cause(error, path)}.") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"The topology {path} is not valid TOML: {error}.") from None
    try:
        return parse_topology(document)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def parse_topology(document: Mapping[str, Any]) -> Topology:
    """A topology from its TOML document; raises ``TopologyError``."""
    check_table(document, _TOPOLOGY, "the topology", _TOPOLOGY)
    application_id, tables = document["application_id"], document["subtopology"]
    subtopologies = tuple(_subtopology(table, ordinal, application_id) for ordinal, table in enumerate(tables))
    names = [spec.name for sub in subtopologies for spec in sub.stores]
    topics = [spec.topic for sub in subtopologies for spec in sub.stores]
    for what, values in (("store name", names), ("topic", topics)):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise TopologyError(f"the {what} {twice[0]!r} is used twice; each store needs its own.")
    return Topology(application_id, subtopologies)


def _title(what: str, table: Any, otherwise: str) -> str:
    """What messages call a table: by its name, if it has one."""
    return f"{what} {table['name']!r}" if isinstance(table, Mapping) and "name" in table else otherwise


def _subtopology(table: Any, ordinal: int, application_id: str) -> SubTopology:
    where = _title(f"sub-topology {ordinal}", table, f"sub-topology {ordinal}")
    check_table(table, _SUB_TOPOLOGY, where, ("name", "partitions", "store"))
    specs = tuple(_store(store, application_id, table["partitions"], where) for store in table["store"])
    is_global = table.get("global", False)
    for spec in specs if is_global else ():
        if spec.kind != "key-value":
            raise TopologyError(
                f"{where} is global, which only key-value stores can be; move the {spec.kind} store "
                f"{spec.name!r} to another sub-topology."
            )
    return SubTopology(ordinal, table["name"], table["partitions"], specs, is_global)


def _store(given: Any, application_id: str, partitions: int, where: str) -> StoreSpec:
    where = _title("store", given, f"a store of {where}")
    check_table(given, _STORE, where, ("name",))
    table = {
        "kind": KINDS[0],
        "key": "string",
        "value": "json",
        "partitioner": "unknown" if given.get("key") == AvroKey.name else "murmur2",
        "topic": f"{application_id}-{given['name']}-changelog",
        **given,
    }
    check_table(table, _STORE, where, STORE_KINDS[table["kind"]].required)
    find_partitioner(table["partitioner"])
    if "spark_state" in given:
        table["spark_state"] = _spark_state(given["spark_state"], f"spark_state of {where}")
    spec = StoreSpec(**table, partitions=partitions)
    for fault in _faults(spec, given):
        raise TopologyError(f"{where} {fault}.")
    return spec


def _faults(spec: StoreSpec, given: Collection[str]) -> Iterator[str]:
    """What contradicts itself in a store, with the remedy; ``given`` are the fields that are not by default."""
    kind = STORE_KINDS[spec.kind]
    durations = {name: getattr(spec, name) for name in _DURATIONS if name in given}
    for extra in sorted(durations.keys() - kind.durations):
        yield f"is of kind {kind.name!r}, which has no {extra!r}; remove it"
    wrong = kind.durations_fault(durations)
    if wrong is not None:
        yield wrong
    if spec.ttl_ms is not None and spec.accept_uncompacted:
        yield (
            "has ttl_ms and accept_uncompacted, and a topic that deletes sooner would lack what has not expired; "
            "remove accept_uncompacted"
        )
    has_schema_keys = spec.key == AvroKey.name
    if has_schema_keys and not (spec.external and kind.with_schema_keys and spec.ttl_ms is None):
        yield f"has key = {spec.key!r}, which only key-value stores with external = true and without ttl_ms have"
    if has_schema_keys and spec.partitioner != "unknown":
        yield (
            "has keys of avro, whose partition depends on their schema, so its partitioner is 'unknown'; remove it"
        )
    if spec.value in SCHEMA_VALUE_CODECS and not spec.external:
        yield f"has value = {spec.value!r}, which only stores with external = true have"
    for name in ("on_bad_value", "record_headers"):
        if name in given and not spec.external:
            yield f"has {name}, which only stores with external = true have"
    if spec.spark_state and (spec.external or spec.value != "json" or kind.keeps_versions):
        yield (
            "has spark_state, which only key-value, window and session stores of JSON values have that are not "
            "external"
        )
    others = (spec.external, spec.accept_uncompacted, spec.ttl_ms, spec.spark_state)
    if spec.latest_by and (kind.with_latest_by is None or any(others)):
        yield (
            "has latest_by, which only key-value stores have that the sink writes, without external, "
            "accept_uncompacted, ttl_ms or spark_state"
        )
    # Entry points are looked for in all that is installed.
    is_own = spec.supplier in ("rocksdb", "memory")
    if not is_own and not entry_points(group=STORE_ENTRY_POINTS, name=spec.supplier):
        yield (
            f"has the supplier {spec.supplier!r}, of which there is none: use 'rocksdb', 'memory', or the name of "
            f"an installed entry point in the group {STORE_ENTRY_POINTS!r}"
        )
    for option in _ROCKSDB_OPTIONS:
        if option in given and spec.supplier != "rocksdb":
            yield f"has {option!r}, which only stores of RocksDB have; its supplier is {spec.supplier!r}"
    if "bloom_bits_per_key" in given and (kind.times or spec.latest_by or has_schema_keys):
        yield (
            "has 'bloom_bits_per_key', which only key-value stores without latest_by and keys of avro have: the "
            "others are read by ranges, which no filter helps"
        )


def _spark_state(table: Any, where: str) -> SparkState:
    check_table(table, _SPARK_STATE, where)
    columns = tuple(_column(item, f"a field of {where}") for item in table.get("fields", ()))
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TopologyError(f"{where} names two fields {twice!r}; give each its own name.")
    return SparkState(table.get("operator", 0), table.get("variable"), columns, table.get("on_removal"))


def _column(table: Any, where: str) -> StateColumn:
    check_table(table, _COLUMN, where, ("name", "position"))
    path = str(table["position"]).split(".")
    return StateColumn(table["name"], tuple(map(int, path)), table.get("function"))
