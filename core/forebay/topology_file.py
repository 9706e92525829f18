"""Reads ``topology.toml``; each error names the file, the place and the remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from forebay.codecs.keys import KEY_CODECS, AvroKey
from forebay.codecs.values import SCHEMA_VALUE_CODECS, VALUE_CODECS
from forebay.errors import TopologyError
from forebay.file_access import cause
from forebay.store_kinds import STORE_KINDS, StoreKind
from forebay.store_spec import DELETE, KEEP, SparkState, StateColumn, StoreSpec, find_partitioner
from forebay.toml_tables import (
    NAME,
    NAME_RULE,
    boolean_field,
    choice_field,
    given_text,
    integer_field,
    name_field,
    refuse_unknown,
)
from forebay.topology import SubTopology, Topology

_MAX_PARTITIONS = 65_536
"""More are probably a typing error, and each would be a file or a topic's partition."""
KINDS = tuple(STORE_KINDS)
COMPRESSIONS = ("lz4", "zstd", "none")
_ROCKSDB_OPTIONS = {"compression": (0, 0), "block_size_bytes": (1_024, 1 << 20), "bloom_bits_per_key": (0, 30)}
"""What a store may choose of RocksDB's options, and of those that are numbers the least and the most."""
STORE_ENTRY_POINTS = "forebay.stores"


_ALL_DURATIONS = frozenset(name for kind in STORE_KINDS.values() for name in kind.durations)


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
    refuse_unknown(document, {"application_id", "subtopology"}, "the topology")
    application_id = name_field(document, "application_id", "the topology")
    tables = document.get("subtopology")
    if not isinstance(tables, list) or not tables:
        raise TopologyError("the topology has no [[subtopology]]; add at least one.")
    subtopologies = tuple(_subtopology(table, ordinal, application_id) for ordinal, table in enumerate(tables))
    names = [spec.name for sub in subtopologies for spec in sub.stores]
    topics = [spec.topic for sub in subtopologies for spec in sub.stores]
    for what, values in (("store name", names), ("topic", topics)):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise TopologyError(f"the {what} {twice[0]!r} is used twice; each store needs its own.")
    return Topology(application_id, subtopologies)


def _subtopology(table: Mapping[str, Any], ordinal: int, application_id: str) -> SubTopology:
    where = f"sub-topology {ordinal}"
    refuse_unknown(table, {"name", "partitions", "global", "store"}, where)
    name = name_field(table, "name", where)
    partitions = integer_field(table, "partitions", where, least=1)
    if partitions > _MAX_PARTITIONS:
        raise TopologyError(f"{where}: partitions = {partitions} is more than {_MAX_PARTITIONS}; use fewer.")
    stores = table.get("store")
    if not isinstance(stores, list) or not stores:
        raise TopologyError(f"{where} ({name!r}) has no [[subtopology.store]]; add at least one.")
    specs = tuple(_store(store, application_id, partitions, where) for store in stores)
    is_global = boolean_field(table, "global", where)
    for spec in specs if is_global else ():
        if spec.kind != "key-value":
            raise TopologyError(
                f"{where} ({name!r}) is global, which only key-value stores can be; move the {spec.kind} store "
                f"{spec.name!r} to another sub-topology."
            )
    return SubTopology(ordinal, name, partitions, specs, is_global)


def _store(table: Mapping[str, Any], application_id: str, partitions: int, where: str) -> StoreSpec:
    if not isinstance(table, Mapping):
        raise TopologyError(f"a store of {where} is {table!r}, not a table.")
    name = name_field(table, "name", f"a store of {where}")
    where = f"store {name!r}"
    tolerance = ("max_record_lag", "max_time_lag_ms", "max_age_ms")
    external = ("external", "on_bad_value", "record_headers", "accept_uncompacted", "accept_misplaced")
    common = {
        "name",
        "kind",
        "key",
        "value",
        "partitioner",
        "topic",
        "supplier",
        "spark_state",
        "latest_by",
        *tolerance,
        *external,
        *_ROCKSDB_OPTIONS,
    }
    refuse_unknown(table, common | _ALL_DURATIONS, where)
    kind = STORE_KINDS[choice_field(table, "kind", KINDS, KINDS[0], where)]
    for extra in sorted(_ALL_DURATIONS - kind.durations):
        if extra in table:
            raise TopologyError(f"{where} is of kind {kind.name!r}, which has no {extra!r}; remove it.")
    given = [*kind.required, *(field_name for field_name in kind.optional if field_name in table)]
    durations: dict[str, Any] = {
        field_name: integer_field(table, field_name, where, least=1) for field_name in given
    }
    fault = kind.durations_fault(durations)
    if fault is not None:
        raise TopologyError(f"{where} {fault}.")
    if "ttl_ms" in durations and table.get("accept_uncompacted", False) is not False:
        raise TopologyError(
            f"{where} has ttl_ms and accept_uncompacted, and a topic that deletes sooner would lack what has not "
            "expired; remove accept_uncompacted."
        )
    topic = table.get("topic", f"{application_id}-{name}-changelog")
    if not isinstance(topic, str) or not NAME.fullmatch(topic) or len(topic) > 249:
        raise TopologyError(f"{where}: the topic {topic!r} is not a topic name ({NAME_RULE}).")
    key = _key_codec(table, kind, where)
    partitioner = table.get("partitioner", "unknown" if key == AvroKey.name else "murmur2")
    find_partitioner(partitioner)
    if key == AvroKey.name and partitioner != "unknown":
        raise TopologyError(
            f"{where} has keys of avro, whose partition depends on their schema, so its partitioner is 'unknown'; "
            "remove it."
        )
    bounds: dict[str, Any] = {
        item: integer_field(table, item, where, least=0) for item in tolerance if item in table
    }
    return StoreSpec(
        name=name,
        kind=kind.name,
        key=key,
        value=_value_codec(table, where),
        partitioner=partitioner,
        topic=topic,
        partitions=partitions,
        supplier=_supplier(table, where),
        external=boolean_field(table, "external", where),
        on_bad_value=_on_bad_value(table, where),
        record_headers=_record_headers(table, where),
        accept_uncompacted=boolean_field(table, "accept_uncompacted", where),
        accept_misplaced=boolean_field(table, "accept_misplaced", where),
        spark_state=_spark_state(table, kind, where),
        latest_by=_latest_by(table, kind, where),
        **durations,
        **_rocksdb_options(table, kind, where),
        **bounds,
    )


def _rocksdb_options(table: Mapping[str, Any], kind: StoreKind, where: str) -> dict[str, Any]:
    given = [item for item in _ROCKSDB_OPTIONS if item in table]
    supplier = table.get("supplier", "rocksdb")
    if given and supplier != "rocksdb":
        raise TopologyError(
            f"{where} has {given[0]!r}, which only stores of RocksDB have; its supplier is {supplier!r}."
        )
    if "bloom_bits_per_key" in given and (kind.times or "latest_by" in table or table.get("key") == AvroKey.name):
        raise TopologyError(
            f"{where} has 'bloom_bits_per_key', which only key-value stores without latest_by and keys of avro "
            "have: the others are read by ranges, which no filter helps."
        )
    chosen: dict[str, Any] = {}
    for item in given:
        if item == "compression":
            chosen[item] = choice_field(table, item, COMPRESSIONS, COMPRESSIONS[0], where)
            continue
        least, most = _ROCKSDB_OPTIONS[item]
        chosen[item] = integer_field(table, item, where, least=least)
        if chosen[item] > most:
            raise TopologyError(f"{where}: {item} = {chosen[item]} is more than {most}.")
    return chosen


def _spark_state(table: Mapping[str, Any], kind: StoreKind, where: str) -> SparkState | None:
    if "spark_state" not in table:
        return None
    if table.get("external") is True or table.get("value", "json") != "json" or kind.keeps_versions:
        raise TopologyError(
            f"{where} has spark_state, which only key-value, window and session stores of JSON values have that "
            "are not external."
        )
    return _parse_spark_state(table["spark_state"], f"spark_state of {where}")


def _parse_spark_state(table: Any, where: str) -> SparkState:
    refuse_unknown(table, {"operator", "variable", "fields", "on_removal"}, where)
    fields = table.get("fields", [])
    if not isinstance(fields, list):
        raise TopologyError(f"{where}: fields = {fields!r} is not a list of tables.")
    columns = tuple(_column(item, f"a field of {where}") for item in fields)
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TopologyError(f"{where} names two fields {twice!r}; give each its own name.")
    return SparkState(
        integer_field(table, "operator", where, least=0) if "operator" in table else 0,
        name_field(table, "variable", where) if "variable" in table else None,
        columns,
        choice_field(table, "on_removal", (KEEP, DELETE), KEEP, where) if "on_removal" in table else None,
    )


def _column(table: Mapping[str, Any], where: str) -> StateColumn:
    refuse_unknown(table, {"name", "position", "function"}, where)
    name, function = table.get("name"), table.get("function")
    if not isinstance(name, str) or not name:
        raise TopologyError(
            f"{where} needs a 'name', the member of the store's values; {given_text(table, 'name')}."
        )
    if function is not None and not isinstance(function, str):
        raise TopologyError(f"{where}: function = {function!r} is not the name of an aggregate.")
    return StateColumn(name, _path(table, where), function)


def _path(table: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """The position as an integer, or as text with the positions of the structs around it before: ``"0.2"``."""
    position = table.get("position")
    if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
        return (position,)
    parts = position.split(".") if isinstance(position, str) else ()
    if parts and all(part.isascii() and part.isdigit() for part in parts):
        return tuple(map(int, parts))
    raise TopologyError(
        f"{where} needs a 'position' as 'forebay spark describe' shows it, such as 2 or \"0.2\"; "
        f"{given_text(table, 'position')}."
    )


def _latest_by(table: Mapping[str, Any], kind: StoreKind, where: str) -> str | None:
    column = table.get("latest_by")
    if column is None:
        return None
    others = ("external", "accept_uncompacted", "ttl_ms", "spark_state")
    if kind.with_latest_by is None or any(table.get(other, False) is not False for other in others):
        raise TopologyError(
            f"{where} has latest_by, which only key-value stores have that the sink writes, without "
            f"{', '.join(others[:-1])} or {others[-1]}."
        )
    if not isinstance(column, str) or not column:
        raise TopologyError(f"{where}: latest_by = {column!r} is not the name of a column.")
    return column


def _key_codec(table: Mapping[str, Any], kind: StoreKind, where: str) -> str:
    name = choice_field(table, "key", tuple(KEY_CODECS), "string", where)
    is_other = table.get("external") is not True or kind.with_schema_keys is None or "ttl_ms" in table
    if name == AvroKey.name and is_other:
        raise TopologyError(
            f"{where} has key = {name!r}, which only key-value stores with external = true and without ttl_ms "
            "have."
        )
    return name


def _value_codec(table: Mapping[str, Any], where: str) -> str:
    name = choice_field(table, "value", tuple(VALUE_CODECS), "json", where)
    if name in SCHEMA_VALUE_CODECS and table.get("external") is not True:
        raise TopologyError(f"{where} has value = {name!r}, which only stores with external = true have.")
    return name


def _on_bad_value(table: Mapping[str, Any], where: str) -> str:
    if "on_bad_value" in table and table.get("external") is not True:
        raise TopologyError(f"{where} has on_bad_value, which only stores with external = true have.")
    return choice_field(table, "on_bad_value", ("stop", "skip"), "stop", where)


def _record_headers(table: Mapping[str, Any], where: str) -> bool:
    if "record_headers" in table and table.get("external") is not True:
        raise TopologyError(f"{where} has record_headers, which only stores with external = true have.")
    return boolean_field(table, "record_headers", where)


def _supplier(table: Mapping[str, Any], where: str) -> str:
    supplier = table.get("supplier", "rocksdb")
    if supplier not in ("rocksdb", "memory") and not entry_points(group=STORE_ENTRY_POINTS, name=supplier):
        raise TopologyError(
            f"{where}: there is no store supplier {supplier!r}: use 'rocksdb', 'memory', or the name of an "
            f"installed entry point in the group {STORE_ENTRY_POINTS!r}."
        )
    return str(supplier)
