"""``forebay spark``: shows what the state in a checkpoint is, and how stores of it are declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.table import Table as Grid

from forebay.output import Output, json_output
from forebay.store_kinds import STORE_KINDS
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.description import (
    OperatorDescription,
    StateField,
    Table,
    describe_operator,
    field_at,
    topology_snippet,
)
from forebay_tap.spark_checkpoint.errors import CheckpointMissing, StateUnsupported, VersionPurged
from forebay_tap.spark_checkpoint.store_files import CHANGELOG_SETTING

_MICROSECONDS = 1_000
_KNOWN_AGE = "known to a tap that is given the sources, by --source kafka://…"
_UNKNOWN_AGE = "unknown, since not all of the query's sources are Kafka topics, whose ends can be compared"


@click.group()
def spark() -> None:
    """Read the state that Spark keeps in a query's checkpoint."""


@spark.command("describe")
@click.argument("checkpoint")
@json_output
def describe(checkpoint: str, output: Output) -> None:
    """Show the operators, variables and fields in CHECKPOINT, a path or URL, and how to declare stores of them."""
    document = checkpoint_document(Checkpoint.open(checkpoint))
    output.show(document, *_lines(document))


def checkpoint_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """What ``forebay spark describe --json`` prints; raises ``CheckpointError``."""
    batches = checkpoint.batches()
    if not batches:
        message = f"{checkpoint.files.url} has no batch that has ended."
        raise CheckpointMissing(f"{message} Run the query until its first batch has.")
    newest = batches[-1]
    offsets = checkpoint.ended_offsets(newest)
    provider = checkpoint.provider(newest)
    described = [
        _operator_document(checkpoint, describe_operator(operator), newest)
        for operator in checkpoint.operators(newest)
    ]
    return {
        "checkpoint_id": checkpoint.id,
        "batches": {"first": batches[0], "last": newest},
        "watermark_ms": offsets.watermark_ms,
        "started_ms": offsets.started_ms,
        "provider": provider.name,
        "codec": provider.codec,
        "format": 2 if checkpoint.ended_commit(newest) else 1,
        "age": _KNOWN_AGE if offsets.kafka_offsets() is not None else _UNKNOWN_AGE,
        "operators": described,
    }


def _operator_document(checkpoint: Checkpoint, description: OperatorDescription, batch: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "operator": description.operator,
        "name": description.name,
        "label": description.label,
    }
    if description.refusal is not None:
        return {**document, "refusal": description.refusal}
    return {
        **document,
        "keeps_changes": _keeps_changes(checkpoint, description, batch),
        "tables": [
            _table_document(description, table, _window_size_ms(checkpoint, description, table, batch))
            for table in description.tables
        ],
    }


def _table_document(description: OperatorDescription, table: Table, window_size_ms: int | None) -> dict[str, Any]:
    name = table.family if len(description.tables) > 1 else f"operator_{description.operator}"
    return {
        "store": table.store,
        "family": table.family,
        "kind": table.kind,
        "partitions": table.partitions,
        "key": [_field_document(field) for field in table.key],
        "key_codec": table.key_codec,
        "value": [_field_document(field) for field in table.value],
        "is_list": table.is_list,
        "has_ttl": table.expires_path is not None,
        "window_size_ms": window_size_ms,
        "topology": topology_snippet(name, description.operator, table, window_size_ms),
    }


def _field_document(field: StateField) -> dict[str, Any]:
    return {
        "position": ".".join(map(str, field.path)),
        "name": field.name,
        "type": str(field.type),
        "functions": list(field.functions),
        "opaque": field.opaque,
    }


def _keeps_changes(checkpoint: Checkpoint, description: OperatorDescription, batch: int) -> bool:
    """Whether the provider writes what each batch changed; RocksDB does only where it is told to."""
    try:
        next(checkpoint.change_blocks(description.operator, 0, batch + 1), None)
    except (StateUnsupported, VersionPurged):
        return False
    return True


def _window_size_ms(
    checkpoint: Checkpoint, description: OperatorDescription, table: Table, batch: int
) -> int | None:
    """The length of the windows, from any that is held; None without one."""
    if "window_size_ms" not in STORE_KINDS[table.kind].required or table.window_path is None:
        return None
    for partition in range(table.partitions):
        for entry in checkpoint.snapshot(description.operator, partition, batch + 1, table.store):
            start, end = field_at(entry.key, table.window_path)
            return int(end - start) // _MICROSECONDS
    return None


def _lines(document: dict[str, Any]) -> Iterator[Any]:
    batches = document["batches"]
    yield f"checkpoint {document['checkpoint_id']}"
    retained = f"batches {batches['first']} to {batches['last']} are retained"
    yield f"{retained}, the last with the watermark {document['watermark_ms']}"
    yield f"{document['provider']}, {document['codec']}, checkpoint format {document['format']}"
    yield f"age of answers: {document['age']}"
    for operator in document["operators"]:
        yield ""
        yield f"operator {operator['operator']}: {operator['label']} ({operator['name']})"
        if "refusal" in operator:
            yield f"cannot be served: {operator['refusal']}"
            continue
        if not operator["keeps_changes"]:
            yield f"RocksDB uploads snapshots only; with {CHANGELOG_SETTING} it uploads changes"
        for table in operator["tables"]:
            yield from _table_lines(table)


def _table_lines(table: dict[str, Any]) -> Iterator[Any]:
    notes = [f"{table['partitions']} partitions"]
    notes += ["a list of values for each key"] * table["is_list"] + ["with a time to live"] * table["has_ttl"]
    grid = Grid(title=f"{table['family']}: {table['kind']}, {', '.join(notes)}", title_justify="left")
    for column in ("part", "position", "name", "type", "may be"):
        grid.add_column(column, overflow="fold")
    for part in ("key", "value"):
        for field in table[part]:
            meaning = "nothing: only Spark reads it" if field["opaque"] else " or ".join(field["functions"])
            grid.add_row(part, field["position"], field["name"], field["type"], meaning)
    yield grid
    if table["key_codec"] is None:
        yield "No key codec takes these key columns."
    else:
        yield table["topology"]
