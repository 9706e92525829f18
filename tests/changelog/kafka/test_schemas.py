"""Values of a schema registry: what Confluent's serializers wrote, as JSON with every digit."""

import base64
import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessages

from forebay.codecs import values as codecs
from forebay.codecs.values import TEXT_VALUE_CODECS, VALUE_CODECS
from forebay.errors import SchemaUnavailable, SettingError
from forebay_changelog.kafka.schemas import Schemas
from tests.support.cluster import wait_until
from tests.support.schema_registry import SchemaRegistry

VALUE = SerializationContext("a topic", MessageField.VALUE)
AVRO = VALUE_CODECS["avro"]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


@pytest.fixture
def known(registry: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schemas:
    """The schemas by which this process decodes."""
    return know(registry, tmp_path, monkeypatch)


def know(registry: SchemaRegistry, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Schemas:
    schemas = Schemas(registry.url, directory, wait_s=20)
    monkeypatch.setattr(codecs._known, "decoder_of", schemas.decoder_of)
    return schemas


def written(registry: SchemaRegistry, schema: Any, value: Any) -> bytes:
    client = SchemaRegistryClient({"url": registry.url})
    found: bytes = AvroSerializer(client, json.dumps(schema))(value, VALUE)
    return found


def shown(codec: Any, stored: bytes) -> Any:
    assert codec.fault(stored) is None
    return json.loads(b'{"value":%b}' % codec.to_json(stored), parse_float=Decimal)


def record(**fields: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": of} for name, of in fields.items()]}


TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "weight", "type": "long"},
        {"name": "branches", "type": {"type": "array", "items": "Tree"}},
    ],
}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}
MONEY = {"type": "fixed", "name": "Money", "size": 16, "logicalType": "decimal", "precision": 30, "scale": 2}
MANY = "12345678901234567890123456789012.3450"


@pytest.mark.parametrize(
    ("schema", "value", "number", "text"),
    [
        ("string", 'ü\u2028"', 'ü\u2028"', 'ü\u2028"'),
        ("bytes", b"\x00\xff", "AP8=", "AP8="),
        ("boolean", True, True, True),
        ("int", -(2**31), -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1, str(2**63 - 1)),
        ("double", 0.1, Decimal("0.1"), Decimal("0.1")),
        ("double", float("inf"), None, None),
        (record(b="bytes"), {"b": b"\x00\xff"}, {"b": "AP8="}, {"b": "AP8="}),
        (record(d=DECIMAL), {"d": Decimal(MANY)}, {"d": Decimal(MANY)}, {"d": MANY}),
        (record(d=DECIMAL), {"d": Decimal("-0.0001")}, {"d": Decimal("-0.0001")}, {"d": "-0.0001"}),
        (record(m=MONEY), {"m": Decimal("-5")}, {"m": Decimal("-5.00")}, {"m": "-5.00"}),
        (record(of=["null", "long", "string"]), {"of": 7}, {"of": 7}, {"of": "7"}),
        (record(of=["null", "long", "string"]), {"of": "7"}, {"of": "7"}, {"of": "7"}),
        (record(of=["null", DECIMAL]), {"of": Decimal(1)}, {"of": Decimal("1.0000")}, {"of": "1.0000"}),
        (
            record(at={"type": "long", "logicalType": "timestamp-micros"}),
            {"at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)},
            {"at": 1767323045678901},
            {"at": "1767323045678901"},
        ),
        (record(on={"type": "int", "logicalType": "date"}), {"on": date(1970, 1, 11)}, {"on": 10}, {"on": 10}),
        (
            record(id={"type": "string", "logicalType": "uuid"}),
            {"id": UUID(int=1)},
            {"id": str(UUID(int=1))},
            {"id": str(UUID(int=1))},
        ),
        (
            record(of={"type": "map", "values": {"type": "array", "items": "long"}}),
            {"of": {"ü": [1, 2]}},
            {"of": {"ü": [1, 2]}},
            {"of": {"ü": ["1", "2"]}},
        ),
        (record(e={"type": "enum", "name": "E", "symbols": ["A", "B"]}), {"e": "B"}, {"e": "B"}, {"e": "B"}),
        (
            TREE,
            {"weight": 1, "branches": [{"weight": 2, "branches": []}]},
            {"weight": 1, "branches": [{"weight": 2, "branches": []}]},
            {"weight": "1", "branches": [{"weight": "2", "branches": []}]},
        ),
    ],
)
def test_what_the_serializer_wrote_is_shown_exactly(registry, known, schema, value, number, text):
    stored = written(registry, schema, value)
    schema_id = int.from_bytes(stored[1:5], "big")
    assert shown(AVRO, stored) == {"value": number, "schema_id": schema_id}
    assert shown(TEXT_VALUE_CODECS["avro"], stored) == {"value": text, "schema_id": schema_id}


def test_values_are_read_by_the_schema_that_they_were_written_with(registry, known):
    old = written(registry, record(a="int"), {"a": 1})
    new = written(registry, record(a="long", b="string"), {"a": 2, "b": "x"})
    assert (shown(AVRO, old)["value"], shown(AVRO, new)["value"]) == ({"a": 1}, {"a": 2, "b": "x"})


def test_schemas_that_others_refer_to_are_fetched_too(registry, known):
    """Of references of references as well; each by the version that is referred to."""
    client = SchemaRegistryClient({"url": registry.url})
    client.register_schema("street", Schema(json.dumps(record(s="string") | {"name": "Street"}), "AVRO"))
    address = record(street="Street", n="int") | {"name": "Address"}
    to_street = [SchemaReference("Street", "street", 1)]
    client.register_schema("address", Schema(json.dumps(address), "AVRO", to_street))
    person = record(home="Address", work=["null", "Address"])
    schema = Schema(json.dumps(person), "AVRO", [SchemaReference("Address", "address", 1)])
    value = {"home": {"street": {"s": "x"}, "n": 1}, "work": None}
    stored = AvroSerializer(client, schema)(value, VALUE)
    # The values that name it are still there.
    registry.deleted_subjects.add("street")
    assert shown(AVRO, stored)["value"] == value


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda stored: b"", "it has 0 bytes, fewer than the 5 of a schema's id"),
        (lambda stored: b"{}" + stored[2:], "it begins with b'{', not with the zero of Confluent's wire format"),
        (lambda stored: stored[:-1], "the schema 100 does not decode it: Expected 4 bytes, read 3"),
        (lambda stored: stored + b"x", "the schema 100 does not decode it: 1 bytes are left"),
        (lambda stored: stored[:3] + b"\x01\x02" + stored[5:], "the registry has no such schema"),
        (lambda stored: stored[:4] + b"\x65" + stored[5:], "it is JSON, not avro"),
    ],
)
def test_what_no_schema_decodes_is_a_fault(registry, known, spoil, fault):
    stored = written(registry, record(a="string"), {"a": "text"})
    registry.register("another", {"schema": "{}", "schemaType": "JSON"})
    assert fault in AVRO.fault(spoil(stored))


def test_a_schema_is_fetched_once_and_kept_for_the_next_process(registry, tmp_path, monkeypatch):
    know(registry, tmp_path, monkeypatch)
    stored = written(registry, "string", "text")
    assert [shown(AVRO, stored)["value"] for _ in range(3)] == ["text"] * 3
    assert registry.requests["/schemas/ids/100"] == 1
    registry.is_away = True
    know(registry, tmp_path, monkeypatch)
    assert shown(AVRO, stored)["value"] == "text"
    with SchemaRegistry() as other:
        # Which may have another schema by this id.
        know(other, tmp_path, monkeypatch)
        assert "no such schema" in AVRO.fault(stored)


def test_a_registry_that_is_away_is_no_fault_of_the_value(registry, tmp_path, monkeypatch):
    know(registry, tmp_path, monkeypatch)
    known, new = written(registry, "string", "text"), written(registry, "long", 1)
    assert AVRO.fault(known) is None
    registry.is_away = True
    with pytest.raises(SchemaUnavailable, match=r"did not give the schema 101: .*The registry is away"):
        AVRO.fault(new)
    assert shown(AVRO, known)["value"] == "text"
    registry.is_away = False
    wait_until(lambda: _is_known(new), "the schema")
    assert shown(AVRO, new)["value"] == 1


def _is_known(stored: bytes) -> bool:
    try:
        return AVRO.fault(stored) is None
    except SchemaUnavailable:
        return False


def test_a_read_waits_for_no_registry(registry, tmp_path, monkeypatch):
    """It is on the event loop."""
    know(registry, tmp_path, monkeypatch)
    stored = written(registry, "string", "text")
    with pytest.raises(SchemaUnavailable, match="is being fetched"):
        AVRO.to_json(stored)
    wait_until(lambda: registry.requests["/schemas/ids/100"], "the fetch")
    assert shown(AVRO, stored)["value"] == "text"


def test_a_proxy_that_finds_nothing_does_not_make_values_bad(registry, tmp_path, monkeypatch):
    stored = written(registry, "string", "text")
    schemas = Schemas(f"{registry.url}/elsewhere", tmp_path, 20)
    monkeypatch.setattr(codecs._known, "decoder_of", schemas.decoder_of)
    with pytest.raises(SchemaUnavailable, match="404"):
        AVRO.fault(stored)


def test_credentials_come_from_the_file_of_properties(registry, tmp_path, monkeypatch):
    stored = written(registry, "string", "text")
    registry.credentials = "reader:a secret"
    file = tmp_path / "registry.properties"
    file.write_text("schema.registry.basic.auth.user.info=reader:a secret\n")
    schemas = Schemas(f"{registry.url}?properties={file}", tmp_path, 20)
    monkeypatch.setattr(codecs._known, "decoder_of", schemas.decoder_of)
    assert shown(AVRO, stored)["value"] == "text"


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("registry:8081", "schema_registry 'registry:8081' is not of the form http://HOST:PORT"),
        ("http://h:1?no.such.property=1", "schema_registry 'http://h:1': .*no.such.property"),
        ("http://h:1?properties=/nowhere", "The file /nowhere of properties cannot be read"),
        ("http://h:1?ssl.ca.location=/nowhere", "schema_registry 'http://h:1': "),
    ],
)
def test_a_url_that_is_of_no_use_is_refused(tmp_path, url, refusal):
    with pytest.raises(SettingError, match=refusal):
        Schemas(url, tmp_path)


def file_of(name: str, *messages: str, imports: tuple[str, ...] = ()) -> FileDescriptorProto:
    """A file of messages, each given as ``Name field:type field:type``, whose last may be nested in the first."""
    file = FileDescriptorProto(name=name, package="shop", syntax="proto3", dependency=imports)
    for text in messages:
        message_name, *fields = text.split()
        outer, _, inner = message_name.partition(".")
        message = (
            next(one for one in file.message_type if one.name == outer).nested_type.add(name=inner)
            if inner
            else file.message_type.add(name=outer)
        )
        for number, field in enumerate(fields, 1):
            field_name, _, of = field.partition(":")
            if of.startswith("."):
                message.field.add(name=field_name, number=number, type=11, type_name=of, label=1)
            else:
                kind = FieldDescriptorProto.Type.Value(f"TYPE_{of.upper()}")
                message.field.add(name=field_name, number=number, type=kind, label=1)
    return file


def messages_of(*files: FileDescriptorProto) -> dict[str, Any]:
    return {name: kind for name, kind in GetMessages([*files]).items() if name.startswith("shop.")}


def protobuf(registry: SchemaRegistry, message: Any) -> bytes:
    client = SchemaRegistryClient({"url": registry.url})
    found: bytes = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})(message, VALUE)
    return found


PROTOBUF = VALUE_CODECS["protobuf"]


def test_protobuf_is_shown_in_its_own_mapping(registry, known):
    """Of nested messages and those behind the first as well; 64-bit integers are strings, and zeros are there."""
    first = "Order order_id:int64 note:string paid:bool part:.shop.Order.Part"
    file = file_of("orders.proto", first, "Order.Part n:int32 raw:bytes", "Refund share:double")
    kinds = messages_of(file)
    order = kinds["shop.Order"](order_id=2**60, note="ü", part={"n": 7, "raw": b"\xff"})
    shown_order = {"order_id": str(2**60), "note": "ü", "paid": False, "part": {"n": 7, "raw": "/w=="}}
    assert shown(PROTOBUF, protobuf(registry, order)) == {"value": shown_order, "schema_id": 100}
    part = kinds["shop.Order"].Part(n=3)
    assert shown(PROTOBUF, protobuf(registry, part))["value"] == {"n": 3, "raw": ""}
    refund = kinds["shop.Refund"](share=0.1)
    assert shown(TEXT_VALUE_CODECS["protobuf"], protobuf(registry, refund))["value"] == {"share": Decimal("0.1")}


def test_protobuf_files_import_others_of_the_registry_and_of_packages(registry, known):
    moment, address = "google/protobuf/timestamp.proto", "address.proto"
    other = file_of(address, "Address street:string")
    file = file_of("sent.proto", "Sent at:.google.protobuf.Timestamp to:.shop.Address", imports=(moment, address))
    of_moment = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(of_moment)
    kinds = messages_of(of_moment, other, file)
    sent = kinds["shop.Sent"](to={"street": "x"})
    sent.at.FromJsonString("2026-01-02T03:04:05.000000006Z")
    stored = protobuf(registry, sent)
    value = {"at": "2026-01-02T03:04:05.000000006Z", "to": {"street": "x"}}
    assert shown(PROTOBUF, stored)["value"] == value
    registry.is_away = True
    assert shown(PROTOBUF, stored)["value"] == value


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda stored: stored[:-1], "the schema 100 does not decode it: "),
        (lambda stored: stored[:5], "the schema 100 does not decode it: index out of range"),
        (lambda stored: stored[:5] + b"\x02\x08" + stored[6:], "the schema 100 does not decode it: "),
        (lambda stored: stored[:5] + b"\x02\x01" + stored[6:], "its path has a negative step"),
        (lambda stored: stored[:5] + b"\xff" * 9 + stored[6:], "the schema 100 does not decode it: "),
        (lambda stored: stored[:4] + b"\x65" + stored[5:], "it is AVRO, not protobuf"),
    ],
)
def test_what_is_no_protobuf_of_its_schema_is_a_fault(registry, known, spoil, fault):
    stored = protobuf(registry, messages_of(file_of("a.proto", "A text:string"))["shop.A"](text="text"))
    registry.register("another", {"schema": '"int"'})
    assert fault in PROTOBUF.fault(spoil(stored))


def test_what_a_worker_cannot_use_is_not_the_records_fault(registry, known):
    """Another worker, with another version or package, may be able to, and apply what this one would skip."""
    importing = file_of("b.proto", "B n:int32", imports=("os/path.proto",))
    text = base64.b64encode(importing.SerializeToString()).decode()
    of_protobuf = registry.register("importing", {"schema": text, "schemaType": "PROTOBUF"})
    of_avro = registry.register("damaged", {"schema": '{"type": "nothing"}'})
    imports = ".*it imports os/path.proto, which the registry does not name"
    for codec, schema_id, why in ((PROTOBUF, of_protobuf, imports), (AVRO, of_avro, "")):
        with pytest.raises(SchemaUnavailable, match=f"The schema {schema_id} cannot be used here{why}"):
            codec.fault(b"\0" + schema_id.to_bytes(4, "big") + b"\0\0")


def chain(depth: int) -> bytes:
    """A list of so many links, in Avro."""
    return b"\x02" * depth + b"\x00"


def test_values_of_any_depth_end_no_process(registry, known):
    """The fast reader of fastavro would: whatever follows in the log could never be applied."""
    link = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
    endless = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "E"}]}
    mutual = {
        "type": "record",
        "name": "A",
        "fields": [
            {
                "name": "b",
                "type": {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", "A"]}]},
            }
        ],
    }
    for schema, payload, is_fine in (
        (link, chain(60), True),
        (link, chain(65), False),
        (link, chain(100_000), False),
        (endless, b"", False),
        ({"type": "array", "items": endless}, b"\x02\x00", False),
        (mutual, chain(100_000), False),
        (mutual, chain(10), True),
    ):
        schema_id = registry.register("s", {"schema": json.dumps(schema)})
        fault = AVRO.fault(b"\0" + schema_id.to_bytes(4, "big") + payload)
        assert (fault is None) == is_fine, fault


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x80\x80\x01\x00"),
        (
            {"type": "map", "values": {"type": "array", "items": record(n="null")}},
            b"\x02\x00\x80\x80\x80\x80\x80\x80\x80\x01\x00\x00",
        ),
        (record(d={"type": "bytes", "logicalType": "decimal", "precision": 10**6}), b"\xd0\x0f" + b"\x7f" * 1_000),
    ],
)
def test_few_bytes_take_no_minutes(registry, known, schema, payload):
    schema_id = registry.register("s", {"schema": json.dumps(schema)})
    assert AVRO.fault(b"\0" + schema_id.to_bytes(4, "big") + payload)


def test_a_topic_may_have_several_types_by_a_union_of_references(registry, known):
    """So Confluent's documentation has it."""
    client = SchemaRegistryClient({"url": registry.url})
    for name in ("Foo", "Bar"):
        of_name = record(**{name.lower(): "int"}) | {"name": name, "namespace": "com"}
        client.register_schema(name, Schema(json.dumps(of_name), "AVRO"))
    references = [SchemaReference("com.Foo", "Foo", 1), SchemaReference("com.Bar", "Bar", 1)]
    union = client.register_schema("t", Schema('["com.Foo", "com.Bar"]', "AVRO", references))
    alone = client.register_schema("u", Schema('"com.Bar"', "AVRO", references[1:]))
    for schema_id, payload, value in ((union, b"\x02\x0e", {"bar": 7}), (alone, b"\x0e", {"bar": 7})):
        assert shown(AVRO, b"\0" + schema_id.to_bytes(4, "big") + payload)["value"] == value


def test_defaults_do_not_matter_to_what_is_read(registry, known):
    """Older registries have schemas whose defaults later versions of fastavro refuse."""
    letter = {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}
    schema = record(n="int", e=["null", letter])
    schema["fields"][0]["default"] = None
    schema_id = registry.register("s", {"schema": json.dumps(schema)})
    assert shown(AVRO, b"\0" + schema_id.to_bytes(4, "big") + b"\x0e\x02\x00")["value"] == {"n": 7, "e": "A"}


def test_schemas_that_were_kept_are_there_before_a_read_needs_them(registry, tmp_path, monkeypatch):
    """On the event loop, a read would wait for the disk."""
    know(registry, tmp_path, monkeypatch)
    stored = written(registry, "string", "text")
    assert AVRO.fault(stored) is None
    know(registry, tmp_path, monkeypatch)
    wait_until(lambda: "forebay-schemas" not in {one.name for one in threading.enumerate()}, "the schemas")
    shutil.rmtree(tmp_path)
    registry.is_away = True
    assert shown(AVRO, stored)["value"] == "text"


def test_a_registry_that_says_nothing_is_given_up(registry, tmp_path, monkeypatch):
    """By default Confluent's client would wait for it for ever, and the partition with it."""
    monkeypatch.setattr("forebay_changelog.kafka.schemas._TIMEOUT_S", 1)
    stored = written(registry, "string", "text")
    released = threading.Event()
    monkeypatch.setattr(registry, "answer", lambda *_: released.wait() and (503, {}))
    know(registry, tmp_path, monkeypatch)
    try:
        with pytest.raises(SchemaUnavailable, match="The registry did not give the schema 100"):
            AVRO.fault(stored)
    finally:
        released.set()


def test_who_comes_back_for_a_schema_waits_no_second_time(registry, tmp_path, monkeypatch):
    """The applier would hold up all other partitions each time."""
    waited_s: list[float] = []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited_s.append(timeout or 0.0)
            return super().wait(timeout)

    schemas = Schemas(registry.url, tmp_path, wait_s=0.05)
    monkeypatch.setattr(codecs._known, "decoder_of", schemas.decoder_of)
    monkeypatch.setattr(schemas, "_fetched", lambda *_: released.wait() and ['"int"'])
    released = threading.Event()
    monkeypatch.setattr("forebay_changelog.kafka.schemas.threading.Event", Waits)
    stored = b"\0\0\0\0\7\x0e"
    errors = []
    for _ in range(20):
        with pytest.raises(SchemaUnavailable, match="is being fetched") as caught:
            AVRO.fault(stored)
        errors.append(caught.value)
    assert sum(waited_s) <= 0.05
    # Each is new: one that is raised again and again keeps every frame, and what that held.
    assert len(set(map(id, errors))) == 20
    released.set()
    wait_until(lambda: _is_known(stored), "the schema")


def test_json_with_the_id_of_its_schema(registry):
    """It needs no registry: whoever wrote it has checked it."""
    client = SchemaRegistryClient({"url": registry.url})
    schema = {"type": "object", "title": "T", "properties": {"n": {"type": "integer"}}}
    stored = JSONSerializer(json.dumps(schema), client)({"n": 2**60}, VALUE)
    codec = VALUE_CODECS["json-schema"]
    assert shown(codec, stored) == {"value": {"n": 2**60}, "schema_id": 100}
    assert codec.fault(stored[:-1]).startswith("it is not JSON")
    assert codec.fault(b"{}") == "it has 2 bytes, fewer than the 5 of a schema's id"
