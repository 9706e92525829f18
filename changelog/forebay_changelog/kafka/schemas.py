"""The schemas of a registry: fetched once, in threads of their own, and kept in the state directory.

So a registry that is away delays only records with a schema that is new here.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from forebay.clock import boot_ms
from forebay.codecs.values import Decode, UnknownSchema, decode_by
from forebay.errors import SchemaUnavailable, SettingError
from forebay_changelog.kafka.avro_schemas import avro_decoder
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
_FORMS = {"protobuf": "serialized"}
"""Which form of a schema to request: a descriptor needs no compiler."""
_NO_SUCH_SCHEMA = 40403
"""The registry's own code: a status of 404 may come from a proxy, or mean another path."""
_TIMEOUT_S = 10
"""Of a request: by default Confluent's client waits for ever."""
_MAX_FETCH_MS = 120_000.0
"""One that has no outcome by then is begun anew."""


class _SchemaFetch:
    """A schema that is being fetched: its text, after those that it refers to, or why there is none."""

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.started_boot_ms = boot_ms()
        self.retry_boot_ms = self.started_boot_ms + _MAX_FETCH_MS
        """From when on another attempt may be made, unless it has succeeded."""
        self.texts: list[str] = []
        self.unknown: str | None = None
        self.unavailable: str | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether its outcome still counts, or is awaited."""
        return boot_ms() < self.retry_boot_ms


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
        threading.Thread(target=self._load_kept, name="forebay-schemas", daemon=True).start()

    def _load_kept(self) -> None:
        """Build the decoders of what earlier processes kept, before reads need them on the event loop."""
        for path in sorted(self._directory.glob("*.json"))[:_MAX_DECODERS]:
            codec, _, number = path.stem.rpartition("-")
            with contextlib.suppress(SchemaUnavailable, ValueError):
                self.decoder_of(codec, int(number), text_numbers=False, patient=False)

    def decoder_of(self, codec: str, schema_id: int, *, text_numbers: bool, patient: bool) -> Decode:
        """As of ``Decoders``."""
        decoder = self._decoders.get((codec, schema_id, text_numbers))
        return self._learn(codec, schema_id, text_numbers, patient) if decoder is None else decoder

    def _learn(self, codec: str, schema_id: int, text_numbers: bool, patient: bool) -> Decode:
        texts = self._kept(codec, schema_id)
        if texts is None:
            texts = self._awaited(codec, schema_id, patient)
        try:
            decoder = protobuf_decoder(texts) if codec == "protobuf" else avro_decoder(texts, text_numbers)
        except Exception as error:
            # Another worker may be able to read it, and its records are not to blame.
            raise SchemaUnavailable(f"The schema {schema_id} cannot be used here: {error!r}.") from None
        with self._lock:
            if len(self._decoders) >= _MAX_DECODERS:
                self._decoders.clear()
            self._decoders[codec, schema_id, text_numbers] = decoder
        return decoder

    def _awaited(self, codec: str, schema_id: int, patient: bool) -> list[str]:
        fetch = self._fetch(codec, schema_id)
        # Counted from its beginning: who comes back for one that takes long must not hold up others each time.
        left_s = self._wait_s - (boot_ms() - fetch.started_boot_ms) / 1000
        if patient:
            fetch.is_done.wait(max(0.0, left_s))
        if not fetch.is_done.is_set():
            raise SchemaUnavailable(f"The schema {schema_id} is being fetched from the registry.", retry_after_s=1)
        if fetch.unknown is not None:
            raise UnknownSchema(fetch.unknown)
        if fetch.unavailable is not None:
            raise SchemaUnavailable(
                f"The registry did not give the schema {schema_id}: {fetch.unavailable}.", retry_after_s=2
            )
        return fetch.texts

    def _fetch(self, codec: str, schema_id: int) -> _SchemaFetch:
        with self._lock:
            found = self._fetches.get((codec, schema_id))
            if found is not None and found.is_under_way:
                return found
            if len(self._fetches) >= _MAX_FETCHES:
                self._fetches = {key: one for key, one in self._fetches.items() if not one.is_done.is_set()}
            if len(self._fetches) >= _MAX_FETCHES:
                self._fetches = {key: one for key, one in self._fetches.items() if one.is_under_way}
            if len(self._fetches) >= _MAX_FETCHES:
                raise SchemaUnavailable("Too many schemas are being fetched from the registry.", retry_after_s=1)
            fetch = self._fetches[codec, schema_id] = _SchemaFetch()
        arguments = (codec, schema_id, fetch)
        threading.Thread(target=self._run, args=arguments, name="forebay-schema", daemon=True).start()
        return fetch

    def _run(self, codec: str, schema_id: int, fetch: _SchemaFetch) -> None:
        try:
            fetch.texts = self._fetched(codec, schema_id)
            self._keep(codec, schema_id, fetch.texts)
        except UnknownSchema as error:
            fetch.unknown = str(error)
        except Exception as error:
            fetch.unavailable = str(error) or repr(error)
        fetch.retry_boot_ms = boot_ms() + _RETRY_MS
        fetch.is_done.set()

    def _fetched(self, codec: str, schema_id: int) -> list[str]:
        """The texts of a schema; raises ``UnknownSchema``, or any error if that is not known."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        form = _FORMS.get(codec)
        try:
            schema = self._client.get_schema(schema_id, fmt=form)
        except SchemaRegistryError as error:
            if error.error_code == _NO_SUCH_SCHEMA:
                raise UnknownSchema("the registry has no such schema") from None
            raise
        if (schema.schema_type or "AVRO") != codec.upper():
            raise UnknownSchema(f"it is {schema.schema_type or 'AVRO'}, not {codec}")
        texts: list[str] = []
        self._add_references(schema, form, texts)
        return [*texts, str(schema.schema_str)]

    def _add_references(self, schema: Any, form: str | None, texts: list[str]) -> None:
        for reference in schema.references or ():
            referred = self._client.get_version(
                reference.subject, reference.version, deleted=True, fmt=form
            ).schema
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
        return SchemaRegistryClient({"url": url, "timeout": _TIMEOUT_S, **_without_prefix(properties)}), url
    except (ValueError, TypeError, OSError) as error:
        raise SettingError(f"schema_registry {url!r}: {error}.") from None


def _without_prefix(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties by the client's names; those of files that Kafka's clients read too begin with a prefix."""
    return {name.removeprefix("schema.registry."): value for name, value in properties.items()}
