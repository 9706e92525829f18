"""The state store provider that a query uses, from the settings that it keeps in its offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_tap.spark_checkpoint.errors import CheckpointFormatUnknown, StateUnsupported

_PREFIX = "spark.sql.streaming.stateStore"
_DEFAULT = "HDFSBackedStateStoreProvider"
_ROCKSDB = "RocksDBStateStoreProvider"
_MERGE_VERSIONS = ("1", "2")


@dataclass(frozen=True)
class Provider:
    """How a query's state is written; ``codec`` compresses deltas and changelogs."""

    name: str
    codec: str

    @property
    def is_rocksdb(self) -> bool:
        """RocksDB, with or without changelog checkpointing; else the default provider."""
        return self.name == _ROCKSDB


def provider_of(conf: Mapping[str, str], file: str) -> Provider:
    """The provider that a batch's settings name; raises ``StateUnsupported`` or ``CheckpointFormatUnknown``."""
    full_name = conf.get(f"{_PREFIX}.providerClass", _DEFAULT)
    name = full_name.rpartition(".")[2]
    if name not in (_DEFAULT, _ROCKSDB):
        message = f"{file} names the state store provider {full_name}, which forebay does not decode."
        raise StateUnsupported(f"{message} Only Spark's own are: {_DEFAULT} and {_ROCKSDB}.")
    encoding = conf.get(f"{_PREFIX}.encodingFormat", "unsaferow")
    if encoding.lower() != "unsaferow":
        remedy = f"Run the query with {_PREFIX}.encodingFormat=unsaferow and a new checkpoint."
        raise StateUnsupported(f"{file} says that state is encoded as {encoding}, which is not decoded. {remedy}")
    if conf.get(f"{_PREFIX}.rowChecksum.enabled", "false").lower() == "true":
        remedy = f"Run the query with {_PREFIX}.rowChecksum.enabled=false and a new checkpoint."
        raise StateUnsupported(f"{file} says that rows have checksums, which are not decoded. {remedy}")
    merge_version = conf.get(f"{_PREFIX}.rocksdb.mergeOperatorVersion", "1")
    if merge_version not in _MERGE_VERSIONS:
        message = f"{file} has version {merge_version} of RocksDB's merge operator; forebay knows 1 and 2."
        raise CheckpointFormatUnknown(f"{message} Use a version of forebay that knows this version of Spark.")
    return Provider(name, conf.get(f"{_PREFIX}.compression.codec", "lz4"))
