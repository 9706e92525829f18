"""The schemas of a registry: fetched once, in threads of their own, and kept in the state directory.

So a registry that is away delays only records with a schema that is new here. Schemas are changed in two points
before fastavro reads by them: of logical types only decimals are left, and where 64-bit integers are to be texts,
they are marked.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future, TimeoutError
from decimal import MAX_PREC, Context, Decimal
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from msgspec.json import Encoder

from forebay.clock import boot_ms
from forebay.codecs.values import Decode, UnknownSchema, decode_by
from forebay.errors import SchemaUnavailable, SettingError
from forebay_changelog.kafka.protobuf_schemas import protobuf_decoder
from forebay_changelog.kafka.url import read_properties

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

log = logging.getLogger(__name__)

_WAIT_S = 0.2
"""How long the applier waits for a schema, and with it the other partitions; later it comes back to the record."""
_RETRY_MS = 2_000.0
_MAX_FETCHES = 64
"""Schemas that are being fetched, or were not found a moment ago."""
_MAX_DECODERS = 10_000
_TEXT, _DECIMAL = "forebay-text", "forebay-decimal"
_FORMS = {"protobuf": "serialized"}
"""Which form of a schema to request: a descriptor needs no compiler."""
_NO_SUCH_SCHEMA = 40403
"""The registry's own code: a status of 404 may come from a proxy, or mean another path."""
_EXACT = Context(prec=MAX_PREC)


class _SchemaFetch(Future[list[str]]):
    """A schema that is being fetched: its text, after those that it refers to."""

    retry_boot_ms = 0.0
    """From when on another attempt may be made, once this one has failed."""


class Schemas:
    """The Avro and Protobuf schemas of a registry by their ids.

    ``registry`` is its URL, with the client's properties as a query or in ``properties=FILE``; ``directory`` is
    where schemas are kept. Raises ``SettingError`` for a URL or properties that the client refuses.
    """

    def __init__(self, registry: str, directory: Path, wait_s: float = _WAIT_S) -> None:
        self._client, url = _client(registry)
        # Another registry may have other schemas by the same ids.
        self._directory = directory / sha256(url.encode()).hexdigest()[:16]
        self._wait_s = wait_s
        self._decoders: dict[tuple[str, int, bool], Decode] = {}
        self._fetches: dict[tuple[str, int], _SchemaFetch] = {}
        self._lock = threading.Lock()

    def decoder_of(self, codec: str, schema_id: int, *, text_numbers: bool, patient: bool) -> Decode:
        """As of ``Decoders``."""
        decoder = self._decoders.get((codec, schema_id, text_numbers))
        return self._learn(codec, schema_id, text_numbers, patient) if decoder is None else decoder

    def _learn(self, codec: str, schema_id: int, text_numbers: bool, patient: bool) -> Decode:
        texts = self._kept(codec, schema_id)
        if texts is None:
            texts = self._awaited(codec, schema_id, self._wait_s if patient else 0.0)
        decoder = protobuf_decoder(texts) if codec == "protobuf" else _avro_decoder(texts, text_numbers)
        with self._lock:
            if len(self._decoders) >= _MAX_DECODERS:
                self._decoders.clear()
            self._decoders[codec, schema_id, text_numbers] = decoder
        return decoder

    def _awaited(self, codec: str, schema_id: int, wait_s: float) -> list[str]:
        fetch = self._fetch(codec, schema_id)
        try:
            return fetch.result(wait_s)
        except TimeoutError:
            raise SchemaUnavailable(
                f"The schema {schema_id} is being fetched from the registry.", retry_after_s=1
            ) from None

    def _fetch(self, codec: str, schema_id: int) -> _SchemaFetch:
        with self._lock:
            found = self._fetches.get((codec, schema_id))
            if found is not None and (not found.done() or boot_ms() < found.retry_boot_ms):
                return found
            if len(self._fetches) >= _MAX_FETCHES:
                self._fetches = {key: one for key, one in self._fetches.items() if not one.done()}
            if len(self._fetches) >= _MAX_FETCHES:
                raise SchemaUnavailable("Too many schemas are being fetched from the registry.", retry_after_s=1)
            fetch = self._fetches[codec, schema_id] = _SchemaFetch()
        arguments = (codec, schema_id, fetch)
        threading.Thread(target=self._run, args=arguments, name="forebay-schema", daemon=True).start()
        return fetch

    def _run(self, codec: str, schema_id: int, fetch: _SchemaFetch) -> None:
        try:
            texts = self._fetched(codec, schema_id)
        except Exception as error:
            fetch.retry_boot_ms = boot_ms() + _RETRY_MS
            fetch.set_exception(error)
        else:
            self._keep(codec, schema_id, texts)
            fetch.set_result(texts)

    def _fetched(self, codec: str, schema_id: int) -> list[str]:
        """The texts of a schema; raises ``UnknownSchema`` and ``SchemaUnavailable``."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            form = _FORMS.get(codec)
            schema = self._client.get_schema(schema_id, fmt=form)
            if (schema.schema_type or "AVRO") != codec.upper():
                raise UnknownSchema(f"it is {schema.schema_type or 'AVRO'}, not {codec}")
            texts: list[str] = []
            self._add_references(schema, form, texts)
            return [*texts, str(schema.schema_str)]
        except SchemaRegistryError as error:
            if error.error_code == _NO_SUCH_SCHEMA:
                raise UnknownSchema("the registry has no such schema") from error
            raise _unavailable(schema_id, error) from error
        except UnknownSchema:
            raise
        except Exception as error:
            raise _unavailable(schema_id, error) from error

    def _add_references(self, schema: Any, form: str | None, texts: list[str]) -> None:
        for reference in schema.references or ():
            referred = self._client.get_version(reference.subject, reference.version, fmt=form).schema
            self._add_references(referred, form, texts)
            if referred.schema_str not in texts:
                texts.append(str(referred.schema_str))

    def _kept(self, codec: str, schema_id: int) -> list[str] | None:
        try:
            texts: list[str] = json.loads((self._directory / f"{codec}-{schema_id}.json").read_text())
        except (OSError, ValueError):
            return None
        return texts

    def _keep(self, codec: str, schema_id: int, texts: list[str]) -> None:
        written = self._directory / f"{schema_id}.{threading.get_ident()}.tmp"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps(texts))
            written.replace(self._directory / f"{codec}-{schema_id}.json")
        except OSError as error:
            log.warning("the schema %d cannot be kept, so a restart fetches it again: %s", schema_id, error)


def know_schemas(registry: str | None, directory: Path, wait_s: float = _WAIT_S) -> None:
    """Have this process read values by a registry's schemas, if there is one; raises ``SettingError``."""
    if registry is not None:
        decode_by(Schemas(registry, directory, wait_s).decoder_of)


def _unavailable(schema_id: int, error: Exception) -> SchemaUnavailable:
    return SchemaUnavailable(f"The registry did not give the schema {schema_id}: {error}.", retry_after_s=2)


def _client(registry: str) -> tuple[SchemaRegistryClient, str]:
    """A registry's client, and its URL."""
    url, _, query = registry.partition("?")
    if not url.lower().startswith(("http://", "https://")):
        raise SettingError(f"schema_registry {url!r} is not of the form http://HOST:PORT or https://HOST:PORT.")
    properties: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        properties.update(read_properties(Path(value)) if name == "properties" else {name: value})
    try:
        import fastavro  # noqa: F401
        import google.protobuf  # noqa: F401
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise SettingError(
            f"schema_registry needs a package that is missing ({error.name}): pip install 'forebay[schemas]'."
        ) from None
    try:
        return SchemaRegistryClient({"url": url, **_without_prefix(properties)}), url
    except (ValueError, TypeError, OSError) as error:
        raise SettingError(f"schema_registry {url!r}: {error}.") from None


def _without_prefix(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties by the client's names; those of files that Kafka's clients read too begin with a prefix."""
    return {name.removeprefix("schema.registry."): value for name, value in properties.items()}


def _avro_decoder(texts: list[str], text_numbers: bool) -> Decode:
    """What reads payloads of the last of some schemas, each of which may refer to those before."""
    from fastavro import parse_schema, schemaless_reader
    from fastavro.read import LOGICAL_READERS

    LOGICAL_READERS[f"long-{_TEXT}"] = _read_text
    LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _read_decimal
    named: dict[str, Any] = {}
    for text in texts:
        schema = parse_schema(_as_read(json.loads(text), text_numbers), named_schemas=named)
    # It writes bytes in base64, and numbers that are not finite as null.
    encode = Encoder(decimal_format="string" if text_numbers else "number").encode

    if schema == "bytes" or (isinstance(schema, dict) and schema["type"] == "bytes"):
        # Confluent's serializers write these as they are, without the length that Avro puts before them.
        return encode

    def decode(payload: bytes) -> bytes:
        file = io.BytesIO(payload)
        value = schemaless_reader(file, schema, None)
        if file.tell() != len(payload):
            raise ValueError(f"{len(payload) - file.tell()} bytes are left")
        return encode(value)

    return decode


def _as_read(schema: Any, text_numbers: bool) -> Any:
    """A schema with the logical types that are read here, and no others."""
    if schema == "long" and text_numbers:
        return {"type": "long", "logicalType": _TEXT}
    if isinstance(schema, list):
        return [_as_read(branch, text_numbers) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    read = {name: value for name, value in schema.items() if name != "logicalType"}
    match schema.get("type"):
        case "long" if text_numbers:
            read["logicalType"] = _TEXT
        case "bytes" | "fixed" if schema.get("logicalType") == "decimal":
            read["logicalType"] = _DECIMAL
        case "record" | "error":
            read["fields"] = [
                {**field, "type": _as_read(field["type"], text_numbers)} for field in schema["fields"]
            ]
        case "array":
            read["items"] = _as_read(schema["items"], text_numbers)
        case "map":
            read["values"] = _as_read(schema["values"], text_numbers)
        case dict() | list() as inner:
            read = _as_read(inner, text_numbers)
    return read


def _read_text(value: int, *_: object) -> str:
    return str(value)


def _read_decimal(value: bytes, schema: dict[str, Any] | None, _: object) -> Decimal:
    unscaled = int.from_bytes(value, "big", signed=True)
    return _EXACT.scaleb(Decimal(unscaled), -int((schema or {}).get("scale", 0)))
