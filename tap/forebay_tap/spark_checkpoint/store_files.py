"""The files of one partition of one store, as its provider writes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

from forebay_tap.spark_checkpoint.changes import (
    FAMILY_ID_BYTES,
    ChangeBlock,
    FamilyDecoder,
    StateEntry,
    family_id,
)
from forebay_tap.spark_checkpoint.compression import decompressor
from forebay_tap.spark_checkpoint.errors import (
    CheckpointFileCorrupt,
    CheckpointFormatUnknown,
    LineageMismatch,
    StateUnsupported,
    VersionNotCommitted,
    VersionPurged,
)
from forebay_tap.spark_checkpoint.files import CheckpointFiles
from forebay_tap.spark_checkpoint.records import Record, RecordBlock, blocks, changelog_blocks, changelog_head
from forebay_tap.spark_checkpoint.rocksdb_snapshot import open_snapshot, read_metadata
from forebay_tap.spark_checkpoint.schemas import DEFAULT_FAMILY, INTERNAL_PREFIX, ColumnFamily

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
        finding = f"{file} has version {merge_version} of RocksDB's merge operator; forebay knows 1 and 2."
        raise CheckpointFormatUnknown(finding)
    return Provider(name, conf.get(f"{_PREFIX}.compression.codec", "lz4"))


Item = tuple[bytes, bytes]
"""A key and its value."""


class _Later(NamedTuple):
    """What became of a key: its value, None if it was deleted, and whether the value is only appended."""

    value: bytes | None
    is_appended: bool


class Overlay:
    """The changes that follow a snapshot. It holds as much as they do."""

    def __init__(self) -> None:
        self._later: dict[bytes, _Later] = {}

    def apply(self, record: Record) -> None:
        """Add the next change."""
        if record.kind != "merge" or record.value is None:
            self._later[record.key] = _Later(record.value, is_appended=False)
            return
        before = self._later.get(record.key, _Later(b"", is_appended=True))
        self._later[record.key] = _Later((before.value or b"") + record.value, before.is_appended)

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """What a snapshot of these items holds after the changes; may be called once."""
        for key, value in items:
            later = self._later.pop(key, None)
            if later is None:
                yield key, value
            elif later.value is not None:
                yield key, value + later.value if later.is_appended else later.value
        for key, (added, _) in self._later.items():
            if added is not None:
                yield key, added


CHANGELOG_SETTING = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled=true"
"""With which RocksDB uploads what each batch changed."""
_SNAPSHOT, _ARCHIVE = ".snapshot", ".zip"


@dataclass(frozen=True)
class _Batch:
    """The records of one version's file."""

    file: str
    has_column_families: bool
    blocks: Iterator[RecordBlock]


@dataclass(frozen=True)
class StoreFiles:
    """One partition's files; ``unique_id`` gives what the commit of a version appends to their names, if
    anything, and raises ``VersionPurged`` or ``VersionNotCommitted`` if there is no commit."""

    files: CheckpointFiles
    directory: str
    provider: Provider
    families: tuple[ColumnFamily, ...]
    version: int
    """The version that is read, which is committed."""
    unique_id: Callable[[int], str | None]
    family_names: dict[int, str]
    """The names of column families by their numbers as far as they are known, which are never used again."""
    only: str | None = None
    """The family to decode; None for all."""
    lineage: dict[int, str] = field(default_factory=dict)
    """The unique ids of earlier versions whose commits are gone, as far as they were looked up."""

    def changes(self, version: int) -> Iterator[ChangeBlock]:
        """What the version changed, without the families of Spark's own."""
        batch = self._batch(version)
        for block in batch.blocks:
            for decoder, part in self._by_family(block, batch):
                values = decoder.values(part.values, batch.file)
                keys = decoder.keys(part.keys, batch.file)
                yield ChangeBlock(version, decoder.family.name, part.kinds, keys, values)

    def _by_family(self, block: RecordBlock, batch: _Batch) -> Iterator[tuple[FamilyDecoder, RecordBlock]]:
        """The block in parts of one family each, in its order, without those that are left out."""
        if not batch.has_column_families:
            yield self._decoders[DEFAULT_FAMILY, False], block
            return
        numbers = [key[:FAMILY_ID_BYTES] for key in block.keys]
        decoders = {number: self._decoder(number, True, batch.file) for number in set(numbers)}
        if len(decoders) == 1:
            [only] = decoders.values()
            if only is not None:
                yield only, block
            return
        kept = (item for item in zip(numbers, *block, strict=True) if decoders[item[0]] is not None)
        for number, items in groupby(kept, key=itemgetter(0)):
            _, kinds, keys, values = zip(*items, strict=True)
            decoder = decoders[number]
            assert decoder is not None
            yield decoder, RecordBlock(kinds, keys, values)

    def content(self, version: int) -> Iterator[StateEntry]:
        """What the store holds at a version, without the families of Spark's own."""
        with ExitStack() as opened:
            base, items, prefixed = self._base(version, opened)
            file, overlay = f"{self.directory}/{version}", Overlay()
            for later in range(base + 1, version + 1):
                batch = self._batch(later)
                file, prefixed = batch.file, batch.has_column_families
                for block in batch.blocks:
                    for record in block.records():
                        overlay.apply(record)
            for key, value in overlay.over(items):
                decoder = self._decoder(key, prefixed, file)
                if decoder is not None:
                    yield StateEntry(decoder.family.name, decoder.key(key, file), decoder.value(value, file))

    def _base(self, version: int, opened: ExitStack) -> tuple[int, Iterable[Item], bool]:
        """The newest snapshot, no newer than the version, that can be read: its version, items and whether keys
        have column families. Version 0 is empty."""
        failed: CheckpointFileCorrupt | None = None
        for base in self._snapshots(version):
            try:
                return base, *self._snapshot(base, opened)
            except CheckpointFileCorrupt as error:
                failed = error
            except (FileNotFoundError, VersionPurged, VersionNotCommitted):
                # Deleted since it was listed, or not of the history of the version.
                continue
        if failed is not None and not self._has_changes(1):
            raise failed
        return 0, (), False

    def _snapshots(self, version: int) -> list[int]:
        """The versions of snapshots up to this one, newest first."""
        suffix = _ARCHIVE if self.provider.is_rocksdb else _SNAPSHOT
        versions = {_version_of(name) for name in self.files.list(self.directory) if name.endswith(suffix)}
        return sorted((number for number in versions if 0 < number <= version), reverse=True)

    def _snapshot(self, version: int, opened: ExitStack) -> tuple[Iterable[Item], bool]:
        """A snapshot that was read to its end once, so that one that is damaged gives way to an earlier one."""
        if not self.provider.is_rocksdb:
            path = self._path(version, _SNAPSHOT)
            plain = self._plain(self.files.read(path), path)
            _read_through(blocks(plain, path))
            items = (zip(block.keys, block.values, strict=True) for block in blocks(plain, path))
            return ((key, value or b"") for key, value in chain.from_iterable(items)), False
        path = self._path(version, _ARCHIVE)
        families = read_metadata(self.files.read(path), path).families
        items_of = opened.enter_context(open_snapshot(self.files, self.directory, path))
        _read_through(items_of())
        return items_of(), bool(families)

    def _batch(self, version: int) -> _Batch:
        path = self._path(version, ".changelog" if self.provider.is_rocksdb else ".delta")
        try:
            plain = self._plain(self.files.read(path), path)
        except FileNotFoundError:
            raise self._unavailable(version, path) from None
        if not self.provider.is_rocksdb:
            return _Batch(path, False, blocks(plain, path))
        head = changelog_head(plain, path)
        self._check_lineage(version, head.lineage, path)
        return _Batch(path, head.has_column_families, changelog_blocks(plain, head, path))

    def _check_lineage(self, version: int, lineage: dict[int, str] | None, path: str) -> None:
        """That the file continues the version that was committed before it."""
        if lineage is None or version - 1 not in lineage:
            return
        try:
            committed = self._unique_id(version - 1)
        except (VersionPurged, VersionNotCommitted):
            return
        if lineage[version - 1] != committed:
            message = f"{path} continues {lineage[version - 1]}, but {committed} is committed as {version - 1}."
            raise LineageMismatch(f"{message} Start again from a snapshot.")

    def _unavailable(self, version: int, path: str) -> StateUnsupported | VersionPurged:
        if self.provider.is_rocksdb and self.files.exists(self._path(version, _ARCHIVE)):
            message = f"{path} does not exist: this query's RocksDB uploads snapshots only, and no changes."
            return StateUnsupported(f"{message} Restart it with {CHANGELOG_SETTING}, or compare snapshots.")
        message = f"{self.files.url} has no {path}: Spark deletes what minBatchesToRetain no longer covers."
        return VersionPurged(f"{message} Start again from a snapshot of a later version.")

    def _has_changes(self, version: int) -> bool:
        try:
            path = self._path(version, ".changelog" if self.provider.is_rocksdb else ".delta")
        except (VersionPurged, VersionNotCommitted):
            return False
        return self.files.exists(path)

    def _path(self, version: int, suffix: str) -> str:
        unique_id = self._unique_id(version) if self.provider.is_rocksdb else None
        return f"{self.directory}/{version}{'' if unique_id is None else f'_{unique_id}'}{suffix}"

    def _unique_id(self, version: int) -> str | None:
        """What is appended to a version's file names, by its commit or, once Spark has deleted that, by later
        changelogs."""
        try:
            return self.unique_id(version)
        except (VersionPurged, VersionNotCommitted):
            if self.unique_id(self.version) is None:
                # Checkpoint format 1 has none.
                return None
            self._learn_lineage(version)
            if version in self.lineage:
                return self.lineage[version]
            raise

    def _learn_lineage(self, version: int) -> None:
        """Look up the unique ids of versions back to this one: a changelog has those since the snapshot before
        it."""
        oldest = min(self.lineage, default=self.version)
        while version < oldest:
            path = self._path(oldest, ".changelog")
            try:
                head = changelog_head(self._plain(self.files.read(path), path), path)
            except FileNotFoundError:
                return
            earlier = {number: name for number, name in (head.lineage or {}).items() if number < oldest}
            if not earlier:
                return
            self.lineage.update(earlier)
            oldest = min(earlier)

    @cached_property
    def _plain(self) -> Callable[[bytes, str], bytes]:
        return decompressor(self.provider.codec)

    @cached_property
    def _decoders(self) -> dict[tuple[str, bool], FamilyDecoder]:
        rocksdb = self.provider.is_rocksdb
        return {
            (family.name, prefixed): FamilyDecoder(family, rocksdb=rocksdb, prefixed=prefixed)
            for family in self.families
            for prefixed in (False, True)
            if not self._is_left_out(family.name)
        }

    def _learn_family_names(self) -> None:
        """Read the names of column families, which only snapshots have.

        A batch that adds a family uploads a snapshot as it commits: normally the newest has them all.
        """
        names = [name for name in self.files.list(self.directory) if name.endswith(_ARCHIVE)]
        known = {family.name for family in self.families}
        for name in sorted(names, key=_version_of, reverse=True):
            if known <= set(self.family_names.values()):
                break
            path = f"{self.directory}/{name}"
            try:
                families = read_metadata(self.files.read(path), path).families
            except (FileNotFoundError, CheckpointFileCorrupt):
                continue
            self.family_names.update({number: family for family, number in families.items()})

    def _decoder(self, key: bytes, prefixed: bool, file: str) -> FamilyDecoder | None:
        """The decoder of a key's column family; None for one of Spark's own."""
        if not prefixed:
            return self._decoders[DEFAULT_FAMILY, False]
        number = family_id(key, file)
        if number not in self.family_names:
            self._learn_family_names()
        name = self.family_names.get(number)
        decoder = self._decoders.get((name or "", True))
        if decoder is None and not self._is_left_out(name):
            message = f"{file} has a key of column family {number}, which no snapshot in {self.directory} names"
            raise CheckpointFileCorrupt(f"{message}. Read it again once Spark has uploaded a snapshot.")
        return decoder

    def _is_left_out(self, family: str | None) -> bool:
        return family is not None and (family.startswith(INTERNAL_PREFIX) or self.only not in (None, family))


def _read_through(items: Iterable[object]) -> None:
    deque(items, maxlen=0)


def _version_of(name: str) -> int:
    """The version in a file's name, such as ``12.zip`` or ``12_ID.zip``; 0 if it has none."""
    number = name.partition(".")[0].partition("_")[0]
    return int(number) if number.isdigit() else 0
