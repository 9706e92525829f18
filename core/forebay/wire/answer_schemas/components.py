"""OpenAPI component schemas, made from the types of answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Meta, Struct
from msgspec.json import schema_components

_PREFIX = "#/components/schemas/"
_SHAPES: dict[str, type[Struct]] = {}

PROBLEM = Meta(extra_json_schema={"$ref": f"{_PREFIX}Problem"})
"""Marks a member that is a problem."""


def reference(shape: type[Struct]) -> dict[str, Any]:
    """A reference to the schema of an answer, or of a part of one."""
    _SHAPES[shape.__name__] = shape
    return {"$ref": f"{_PREFIX}{shape.__name__}"}


def one_of(*shapes: type[Struct]) -> Meta:
    """Marks a value that has one of several forms."""
    return Meta(extra_json_schema={"oneOf": [reference(shape) for shape in shapes]})


def components(document: Any) -> dict[str, Any]:
    """The schemas that an OpenAPI document refers to, and of their parts, by name."""
    schemas: dict[str, Any] = {}
    while missing := sorted(_references([document, schemas]) & _SHAPES.keys() - schemas.keys()):
        shapes = [_SHAPES[name] for name in missing]
        schemas |= schema_components(shapes, ref_template=f"{_PREFIX}{{name}}")[1]
    for schema in schemas.values():
        _require_written(schema)
    for node in _objects(schemas):
        if isinstance(node.get("enum"), list):
            node["type"] = "string"
    return dict(sorted(schemas.items()))


def _references(node: Any) -> set[str]:
    return {str(inner["$ref"]).removeprefix(_PREFIX) for inner in _objects(node) if "$ref" in inner}


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    """A node and all below it that are objects."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _objects(item)


def _require_written(schema: dict[str, Any]) -> None:
    """Require the members that have a default, too: it is for readers, and they are always written."""
    members = schema.get("properties", {})
    defaults = {name for name, member in members.items() if "default" in member}
    if defaults:
        required = {*schema.get("required", ()), *defaults}
        schema["required"] = [name for name in members if name in required]
    for name in defaults:
        del members[name]["default"]
