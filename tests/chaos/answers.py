"""Documents of the service as reads of a history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay.client import Answer
from forebay.errors import Problem, UnknownKey
from forebay.position import decode_position
from tests.chaos.history import Item, Portion, Read

Document = Mapping[str, Any]
_PREFIX = "urn:forebay:problem:"


def portions_of(document: Document) -> dict[int, Portion]:
    """What an answer, or one partition's part of a list, says about its partition."""
    partition = document["partition"]
    position = decode_position(document["position"]).offsets[partition]
    lag = document["lag"]
    figures = (lag["record_lag"], lag["time_lag_ms"], lag["age_ms"])
    return {partition: Portion(position, document["role"], document["host"], *figures)}


def problem_name(document: Document) -> str:
    """The name in a problem's type, or the whole type if it is none of ours."""
    return str(document.get("type", "no type")).removeprefix(_PREFIX)


def of_key(read: Read, status: int, document: Document) -> Read:
    """The read of a key whose answer, or problem, is a document."""
    item = (document.get("key"),)
    if status == 200 and "value" in document:
        return replace(read, status=200, items=((item, document["value"]),), portions=portions_of(document))
    name = problem_name(document)
    if name == UnknownKey.name and "position" in document:
        return replace(read, status=404, problem=name, items=((item, None),), portions=portions_of(document))
    return replace(read, status=status, problem=name)


def of_client(read: Read, item: Item, answer: Answer | Problem) -> Read:
    """The read of a key by forebay's client."""
    if isinstance(answer, Problem):
        return of_key(read, answer.status, {"key": item[0], **answer.document()})
    portion = {
        answer.partition: Portion(
            decode_position(answer.position).offsets[answer.partition], answer.role, answer.host, *answer.lag
        )
    }
    return replace(read, status=200, items=(((answer.key,), answer.value),), portions=portion)


def of_list(read: Read, status: int, document: Document, member: str) -> Read:
    """The read of a page whose items are in a member of its document."""
    if status != 200:
        return replace(read, status=status, problem=problem_name(document))
    items = tuple((_item(document, entry), entry["value"]) for entry in document[member])
    portions: dict[int, Portion] = {}
    for part in document["partitions"]:
        portions |= portions_of(part)
    assert read.scope is not None
    last = items[-1][0] if document["next"] is not None and items else None
    if document["next"] is not None and not items:
        # It scanned, found nothing, and says nothing of the rest.
        portions = {}
    return replace(read, status=200, items=items, portions=portions, scope=replace(read.scope, last=last))


def _item(document: Document, entry: Document) -> Item:
    key = entry.get("key", document.get("key"))
    times = [entry[name] for name in ("start_ms", "valid_from_ms") if name in entry]
    return (key, *times)
