"""A RocksDB snapshot: ``V.zip`` with RocksDB's own small files, and its SST files in ``SSTs/`` under other
names."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from rocksdict import AccessType, Options, Rdict

from forebay_tap.spark_checkpoint.errors import CheckpointFileCorrupt, CheckpointFormatUnknown
from forebay_tap.spark_checkpoint.files import CheckpointFiles

_METADATA = "metadata"
_REMEDY = "Restore the file, or start from another snapshot."


@dataclass(frozen=True)
class SnapshotMetadata:
    """``families`` has the column families' numbers by name (none if the store does not use them), ``sst_files``
    the SST files as (the name that RocksDB knows, the name in the checkpoint)."""

    families: dict[str, int]
    sst_files: tuple[tuple[str, str], ...]


def read_metadata(archive: bytes, path: str) -> SnapshotMetadata:
    """What a snapshot consists of; raises ``CheckpointFileCorrupt`` or ``CheckpointFormatUnknown``."""
    with _opened(archive, path) as content:
        return _metadata(content, path)


Items = Iterator[tuple[bytes, bytes]]


@contextmanager
def open_snapshot(files: CheckpointFiles, directory: str, path: str) -> Iterator[Callable[[], Items]]:
    """What reads every key and value of a snapshot, of which a temporary directory has copies of the files.

    Both raise ``CheckpointFileCorrupt`` if a file is missing or RocksDB refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-snapshot-") as scratch:
        target = Path(scratch)
        with _opened(files.read(path), path) as content:
            metadata = _metadata(content, path)
            for name in content.namelist():
                if name != _METADATA:
                    # Names of RocksDB's own, never with a directory.
                    (target / Path(name).name).write_bytes(content.read(name))
        for known, stored in metadata.sst_files:
            (target / Path(known).name).write_bytes(_part(files, f"{directory}/SSTs/{stored}", path))
        database = _database(target, path)
        try:
            yield partial(_items, database, path)
        finally:
            database.close()


def _items(database: Rdict, path: str) -> Items:
    try:
        for key, value in database.items():
            yield cast(bytes, key), value
    except Exception as error:
        # rocksdict raises plain Exception.
        raise CheckpointFileCorrupt(f"RocksDB cannot read the snapshot {path}: {error}. {_REMEDY}") from error


def _database(directory: Path, path: str) -> Rdict:
    try:
        # Its own options, for the operator by which it joins the values of a list.
        options, _ = Options.load_latest(str(directory))
        return Rdict(str(directory), options, access_type=AccessType.read_only())
    except Exception as error:
        raise CheckpointFileCorrupt(f"RocksDB cannot open the snapshot {path}: {error}. {_REMEDY}") from error


def _part(files: CheckpointFiles, stored: str, path: str) -> bytes:
    try:
        return files.read(stored)
    except FileNotFoundError:
        raise CheckpointFileCorrupt(f"{path} needs {stored}, which is missing. {_REMEDY}") from None


def _opened(archive: bytes, path: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(archive))
    except zipfile.BadZipFile as error:
        raise CheckpointFileCorrupt(f"{path} is no whole archive: {error}. {_REMEDY}") from error


def _metadata(content: zipfile.ZipFile, path: str) -> SnapshotMetadata:
    try:
        head, _, text = content.read(_METADATA).decode().partition("\n")
        document: dict[str, Any] = json.loads(text) if head == "v1" else {}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointFileCorrupt(f"{path} has no metadata that can be read: {error}. {_REMEDY}") from error
    if head != "v1":
        raise CheckpointFormatUnknown(f"{path} has snapshot format {head[:20]!r}; forebay knows v1.")
    if document.get("logFiles"):
        # Spark's RocksDB writes none, and content that is only there would go unseen.
        raise CheckpointFormatUnknown(
            f"{path} has files of RocksDB's write-ahead log, which forebay does not read."
        )
    return SnapshotMetadata(
        families=document.get("columnFamilyMapping") or {},
        sst_files=tuple(
            (item["localFileName"], item["dfsSstFileName"]) for item in document.get("sstFiles") or ()
        ),
    )
