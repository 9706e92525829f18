"""Answers with what stores hold.

Reads put their bytes together without these objects: see ``forebay.wire.answers``.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from forebay.store_kinds import StoreKind
from forebay.wire.answer_schemas.components import PROBLEM, one_of
from forebay.wire.answer_schemas.members import Host, JsonValue, LagFigures, Natural, Role, UnprovenEnds

TimestampMs = Annotated[int, Meta(description="The timestamp of the record that wrote it, in epoch milliseconds.")]
SchemaId = Annotated[
    Natural | UnsetType,
    Meta(description="The schema that a registry has for the value, if the store's values carry it."),
]
KeySchemaId = Annotated[
    Natural | UnsetType,
    Meta(description="The schema that a registry has for the key, if the store's keys carry it."),
]


class RecordHeader(Struct, frozen=True):
    """A header of a record: a text or null, or in base64 what is no UTF-8."""

    name: str
    value: str | UnsetType | None = UNSET
    value_base64: str | UnsetType = UNSET


RecordHeaders = Annotated[
    list[RecordHeader] | UnsetType,
    Meta(description="With `headers=true`: those of the record that wrote the value, in their order."),
]


class AnsweringReplica(Struct, frozen=True):
    """The replica that answered, and how far it was."""

    partition: Natural
    position: str
    role: Role
    host: Host
    lag: LagFigures


Explanation = Annotated[
    JsonValue | UnsetType,
    Meta(
        description="With `explain=true`: the answer's bounds, who was asked in which order, and each step's time."
    ),
]


class KeyAnswer(AnsweringReplica, frozen=True):
    """The value of one key."""

    store: str
    key: JsonValue
    value: JsonValue
    timestamp_ms: TimestampMs
    schema_id: SchemaId = UNSET
    headers: RecordHeaders = UNSET
    explain: Explanation = UNSET


class KeyProblem(Struct, frozen=True):
    """Why a key of a batch has no value here."""

    key: JsonValue
    problem: Annotated[JsonValue, PROBLEM]


class BatchAnswer(Struct, frozen=True):
    """The results of several keys, in their order."""

    results: list[Annotated[JsonValue, one_of(KeyAnswer, KeyProblem)]]
    explain: Explanation = UNSET


class ListAnswer(Struct, frozen=True, kw_only=True):
    """A page of a list."""

    store: str
    next: Annotated[
        str | None,
        Meta(
            description="The cursor of the next page, null at the end. A list may end before its limit, "
            "even without an item, if few of the entries scanned match."
        ),
    ]
    complete: Annotated[
        bool, Meta(description="Whether no partition is missing, and nothing in the list's range is unproven.")
    ]
    lag: LagFigures
    partitions: list[AnsweringReplica]
    missing: list[Natural] | UnsetType = UNSET
    unproven: list[UnprovenEnds] | UnsetType = UNSET
    skipped_old: Annotated[
        Natural | UnsetType, Meta(description="With `skip_old`: how many of the entries read were left out.")
    ] = UNSET
    explain: Explanation = UNSET


def list_answer(kind: StoreKind, keyed: bool) -> type[Struct]:
    """The type of a list of a kind of store: of one key, or of all."""
    name = f"{'Key' if keyed else ''}{kind.items.capitalize()}"
    key: list[tuple[str, Any]] = [("key", JsonValue)]
    times = [(time, int) for time in kind.time_names]
    of_schema_keys = () if kind.with_schema_keys is None else kind.with_schema_keys.time_names
    item = defstruct(
        f"{name}Item",
        [
            *([] if keyed else key),
            *times,
            ("value", JsonValue),
            ("timestamp_ms", TimestampMs),
            ("schema_id", SchemaId, UNSET),
            ("headers", RecordHeaders, UNSET),
            *((name, KeySchemaId, UNSET) for name in of_schema_keys),
        ],
        frozen=True,
    )
    listed = (kind.items, list[item])  # type: ignore[valid-type]
    return defstruct(
        f"{name}Answer",
        [*(key if keyed else []), listed],
        bases=(ListAnswer,),
        namespace={"__doc__": f"A page of the {kind.items} of {'one key' if keyed else 'all keys'}."},
        frozen=True,
        kw_only=True,
    )
