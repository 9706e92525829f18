"""One description of each answer: OpenAPI, and what clients return, agree with it."""

from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from forebay.lag import Lag, Tolerance
from forebay.store_spec import StoreSpec
from forebay.wire.answer_schemas.components import components, reference
from forebay.wire.answer_schemas.members import LagFigures
from forebay.wire.answer_schemas.reads import AnsweringReplica, KeyAnswer, list_answer
from forebay.wire.answer_schemas.status import Ceiling, ReplicaRow, StatusReport
from forebay.wire.answer_schemas.stores import HostMetadata, StoreDescription
from forebay.wire.answers import ReplicaInfo
from forebay.wire.scans import SCAN_ROUTES
from forebay_client.results import Answer, ReplicaLag

COUNTERPARTS = [
    (Answer, KeyAnswer, set()),
    (ReplicaInfo, AnsweringReplica, set()),
    (ReplicaLag, ReplicaRow, {"lag"}),
    (Lag, LagFigures, set()),
    (Tolerance, Ceiling, set()),
]
"""What a client returns, the answer that it is made from, and the members that it has from elsewhere."""


def members(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)} if is_dataclass(kind) else {*kind._fields}


def may_be_none(hint: Any) -> bool:
    return NoneType in get_args(hint)


@pytest.mark.parametrize(("kind", "shape", "own"), COUNTERPARTS)
def test_what_a_client_returns_has_the_members_of_the_answer(kind, shape, own):
    wire, hints = get_type_hints(shape), get_type_hints(kind)
    assert members(kind) - own <= wire.keys()
    for name in members(kind) - own - {"failure"}:
        assert may_be_none(hints[name]) or not may_be_none(wire[name]), name


@pytest.mark.parametrize("route", SCAN_ROUTES, ids=lambda route: route.path)
def test_each_list_has_an_answer_with_the_items_of_its_kind(route):
    shape = list_answer(route.store_kind, route.keyed)
    answer, schemas = shape.__name__, components(reference(shape))
    assert "key" in schemas[answer]["properties"] or not route.keyed
    item = schemas[answer]["properties"][route.items]["items"]["$ref"].rpartition("/")[2]
    own_key = [] if route.keyed else ["key"]
    assert schemas[item]["required"] == [*own_key, *route.store_kind.time_names, "value", "timestamp_ms"]


def test_every_field_of_a_store_is_described():
    spec = StoreSpec("s", "window", "string", "json", "murmur2", "t", 1)
    whole = {name: getattr(spec, name) or 1 for name in members(StoreSpec) - {"spark_state"}}
    assert StoreSpec.from_document(whole).document().keys() == {*StoreDescription.__struct_fields__}


def test_a_schema_requires_what_is_always_written():
    schemas = components([reference(HostMetadata), reference(StatusReport), reference(ReplicaRow)])
    assert "process_ids" in schemas["HostMetadata"]["required"]
    assert {"rack", "ceiling"} <= {*schemas["StatusReport"]["required"]}
    assert "failure" not in schemas["ReplicaRow"]["required"]
    assert "default" not in str(schemas)


def test_a_schema_comes_with_those_of_its_parts_and_no_others():
    assert components({"schema": reference(KeyAnswer)}).keys() == {"KeyAnswer", "LagFigures", "RecordHeader"}
    assert components({"schema": {"type": "string"}}) == {}
