"""A query's stateful operators: ``state/OPERATOR/_metadata``, and where their schemas and stores are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from forebay_tap.spark_checkpoint.errors import CheckpointFileCorrupt, CheckpointFormatUnknown, CheckpointMissing
from forebay_tap.spark_checkpoint.files import CheckpointFiles
from forebay_tap.spark_checkpoint.schemas import DEFAULT_FAMILY, ColumnFamily, parse_schema


class OperatorMetadata:
    """The metadata of a checkpoint's operators. Of batches in their order, only the first lists a directory."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._newest: dict[int, tuple[int, int]] = {}
        """By operator, a batch and the batch from which its metadata is, of those that have several files."""

    def read(self, operator: int, batch: int) -> tuple[str, bytes]:
        """The file that says what the batch found, and its content; raises ``CheckpointMissing``."""
        only_one = None if operator in self._newest else self._file(f"{_directory(operator)}/metadata")
        return only_one or self._next(operator, batch) or self._listed(operator, batch)

    def _next(self, operator: int, batch: int) -> tuple[str, bytes] | None:
        """That of the batch itself, or else that of the one before, if this was read last."""
        before, changed = self._newest.get(operator, (batch, batch))
        if batch not in (before, before + 1):
            return None
        for number in sorted({batch, changed}, reverse=True):
            found = self._file(f"{_directory(operator)}/v2/{number}")
            if found is not None:
                self._newest[operator] = (batch, number)
                return found
        return None

    def _listed(self, operator: int, batch: int) -> tuple[str, bytes]:
        directory = _directory(operator)
        batches = [int(name) for name in self._files.list(f"{directory}/v2") if name.isdigit()]
        if not batches:
            message = f"{self._files.url} has no {directory}: no such operator, or one of Spark 3.5 or earlier."
            raise CheckpointMissing(f"{message} Restart the query once with Spark 4, which writes it.")
        earlier = [number for number in batches if number <= batch]
        number = max(earlier) if earlier else min(batches)
        self._newest[operator] = (batch, number)
        path = f"{directory}/v2/{number}"
        return path, self._files.read(path)

    def _file(self, path: str) -> tuple[str, bytes] | None:
        try:
            return path, self._files.read(path)
        except FileNotFoundError:
            return None


def _directory(operator: int) -> str:
    return f"state/{operator}/_metadata"


DEFAULT_STORE = "default"
_LIST = "ListState"


@dataclass(frozen=True)
class StateVariable:
    """A variable of a stateful processor: ``kind`` is Spark's ``ValueState``, ``ListState``, ``MapState`` or
    ``TimerState``; its column family has the same name."""

    name: str
    kind: str
    has_ttl: bool


@dataclass(frozen=True)
class Store:
    """A state store of an operator; joins have several, all others ``default``."""

    name: str
    partitions: int
    column_families: tuple[ColumnFamily, ...]

    def family(self, name: str = DEFAULT_FAMILY) -> ColumnFamily:
        """A column family by name; raises ``CheckpointMissing``."""
        for family in self.column_families:
            if family.name == name:
                return family
        names = ", ".join(family.name for family in self.column_families)
        raise CheckpointMissing(f"The store {self.name!r} has no column family {name!r}, only {names}.")


@dataclass(frozen=True)
class Operator:
    """A stateful operator: ``name`` is Spark's, ``properties`` what it notes of itself (transformWithState
    only)."""

    id: int
    name: str
    stores: tuple[Store, ...]
    variables: tuple[StateVariable, ...] = ()
    properties: tuple[tuple[str, Any], ...] = ()

    def store(self, name: str = DEFAULT_STORE) -> Store:
        """A store by name; raises ``CheckpointMissing``."""
        for store in self.stores:
            if store.name == name:
                return store
        names = ", ".join(store.name for store in self.stores)
        raise CheckpointMissing(f"The operator {self.id} ({self.name}) has no store {name!r}, only {names}.")


def read_operator(files: CheckpointFiles, metadata: OperatorMetadata, operator: int, batch: int) -> Operator:
    """The operator as the batch found it.

    Raises ``CheckpointMissing``, ``CheckpointFormatUnknown``, ``CheckpointFileCorrupt`` or ``StateUnsupported``.
    """
    path, content = metadata.read(operator, batch)
    document = _parse(content, path)
    try:
        properties = json.loads(document.get("operatorPropertiesJson") or "{}")
        described = properties.pop("stateVariables", [])
        variables = tuple(
            StateVariable(item["stateName"], item["stateVariableType"], item["ttlEnabled"]) for item in described
        )
        lists = {variable.name for variable in variables if variable.kind == _LIST}
        stores = tuple(_store(files, operator, item, lists) for item in document["stateStoreInfo"])
        name = document["operatorInfo"]["operatorName"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointFileCorrupt(
            f"{path} does not describe an operator: {error!r}. Restore the file."
        ) from error
    return Operator(operator, name, stores, variables, tuple(sorted(properties.items())))


def store_directory(operator: int, store: str, partition: int) -> str:
    """Where the files of one partition of a store are."""
    below = "" if store == DEFAULT_STORE else f"/{store}"
    return f"state/{operator}/{partition}{below}"


def _parse(data: bytes, path: str) -> dict[str, Any]:
    head, _, text = data.decode(errors="replace").partition("\n")
    if head not in ("v1", "v2"):
        raise CheckpointFormatUnknown(f"{path} has format {head[:20]!r}; forebay knows v1 and v2.")
    try:
        parsed: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise CheckpointFileCorrupt(f"{path} is cut short or damaged: {error}. Restore the file.") from error
    return parsed


def _store(files: CheckpointFiles, operator: int, described: dict[str, Any], lists: Iterable[str]) -> Store:
    name = described["storeName"]
    paths = described.get("stateSchemaFilePaths") or []
    # As Spark wrote them, with the location that the checkpoint had then.
    path = (
        f"state/{operator}/_stateSchema/{paths[-1].rpartition('/_stateSchema/')[2]}"
        if paths
        else f"{store_directory(operator, name, 0)}/_metadata/schema"
    )
    try:
        schema = files.read(path)
    except FileNotFoundError:
        message = f"{files.url} has no {path}, which the operator's metadata names. Restore the file."
        raise CheckpointFileCorrupt(message) from None
    families = parse_schema(schema, path, described.get("numColsPrefixKey", 0))
    marked = tuple(dataclasses.replace(family, has_lists=family.name in lists) for family in families)
    return Store(name, described["numPartitions"], marked)
