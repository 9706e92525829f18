"""A checkpoint: its batches, its operators, and what each version of their stores holds and changed.

Version *n* + 1 of a store is what batch *n* made of it; version 0 is empty. A version is final once ``commits/n``
exists: until then Spark may write its files again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache

from forebay_tap.spark_checkpoint.changes import ChangeBlock, StateEntry
from forebay_tap.spark_checkpoint.errors import CheckpointMissing, VersionNotCommitted, VersionPurged
from forebay_tap.spark_checkpoint.files import CheckpointFiles, open_files
from forebay_tap.spark_checkpoint.logs import Offsets, StoreIds, parse_commit, parse_offsets, parse_query_id
from forebay_tap.spark_checkpoint.operators import (
    DEFAULT_STORE,
    Operator,
    OperatorMetadata,
    read_operator,
    store_directory,
)
from forebay_tap.spark_checkpoint.store_files import Provider, StoreFiles, provider_of

_REMEMBERED_BATCHES = 8


class Checkpoint:
    """One query's checkpoint. It is only ever read. Any method raises a ``CheckpointError``.

    ``change_blocks``, ``snapshot`` and what begins with ``ended`` remember the files of a few batches that have
    ended: once a query was set back to an earlier batch, open its checkpoint anew.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self.files = files
        self._family_names: dict[tuple[int, str, int], dict[int, str]] = {}
        self._metadata = OperatorMetadata(files)
        self.ended_file = lru_cache(2 * _REMEMBERED_BATCHES)(files.read)
        """The content of a file in ``commits`` or ``offsets``."""
        self.ended_status = lru_cache(_REMEMBERED_BATCHES)(files.stat)
        """The size and time of a file in ``commits``: of a batch that was run again, it is written again."""
        self.ended_offsets = lru_cache(_REMEMBERED_BATCHES)(self._offsets)
        """What a batch read up to."""
        self.ended_commit = lru_cache(_REMEMBERED_BATCHES)(self._commit)
        """The ids that the end of a batch notes; raises ``VersionNotCommitted`` if it has not ended."""
        self.ended_operator = lru_cache(_REMEMBERED_BATCHES)(self.operator)

    @classmethod
    def open(cls, url: str) -> Checkpoint:
        """The checkpoint at a path or URL, see ``open_files``."""
        checkpoint = cls(open_files(url))
        _ = checkpoint.id
        return checkpoint

    @cached_property
    def id(self) -> str:
        """The query's id, which stays as long as its checkpoint."""
        try:
            return parse_query_id(self.files.read("metadata"), "metadata")
        except FileNotFoundError:
            message = f"{self.files.url} is no checkpoint: it has no file 'metadata'."
            raise CheckpointMissing(f"{message} Give the query's checkpointLocation.") from None

    def batches(self) -> list[int]:
        """The batches that have ended and are still noted, ascending; lists a directory."""
        return sorted(int(name) for name in self.files.list("commits") if name.isdigit())

    def newest_batch(self) -> int:
        """The last batch that has ended; lists a directory. Raises ``VersionNotCommitted`` if none has."""
        batches = self.batches()
        if not batches:
            message = f"{self.files.url} has no batch that has ended."
            raise VersionNotCommitted(f"{message} Run the query until its first batch has.")
        return batches[-1]

    def is_committed(self, batch: int) -> bool:
        """Whether the batch has ended; lists nothing."""
        return self.files.exists(f"commits/{batch}")

    def is_unchanged(self, batch: int) -> bool:
        """Whether the batch has ended, and was not run again since ``ended_status`` was asked for it."""
        path = f"commits/{batch}"
        try:
            return self.files.stat(path) == self.ended_status(path)
        except FileNotFoundError:
            return False

    def _offsets(self, batch: int) -> Offsets:
        path = f"offsets/{batch}"
        try:
            return parse_offsets(self.ended_file(path), path)
        except FileNotFoundError:
            raise _missing_batch(self.files, path) from None

    def _commit(self, batch: int) -> StoreIds:
        path = f"commits/{batch}"
        try:
            return parse_commit(self.ended_file(path), path)
        except FileNotFoundError:
            if batch < min(self.batches(), default=0):
                raise _missing_batch(self.files, path) from None
            message = f"{self.files.url} has no {path}: the batch has not ended, and may be repeated."
            raise VersionNotCommitted(f"{message} Read it once the file exists.") from None

    def provider(self, batch: int) -> Provider:
        """The state store provider that a batch used."""
        return provider_of(self.ended_offsets(batch).conf, f"offsets/{batch}")

    def operators(self, batch: int) -> tuple[Operator, ...]:
        """The stateful operators as a batch found them; none if the query is stateless."""
        names = [name for name in self.files.list("state") if name.isdigit()]
        return tuple(self.operator(number, batch) for number in sorted(map(int, names)))

    def operator(self, operator: int, batch: int) -> Operator:
        """A stateful operator as a batch found it."""
        return read_operator(self.files, self._metadata, operator, batch)

    def change_blocks(
        self, operator: int, partition: int, version: int, store: str = DEFAULT_STORE, family: str | None = None
    ) -> Iterator[ChangeBlock]:
        """What a version changed, many changes at a time, in the order of its file.

        A key may occur several times: the last counts. Column families of Spark's own are left out, or all but the
        ``family``. Raises ``VersionNotCommitted``, ``VersionPurged``, ``LineageMismatch``, and
        ``StateUnsupported`` if the provider keeps no changes.
        """
        self.ended_commit(version - 1)
        yield from self._store_files(operator, partition, version, store, family).changes(version)

    def snapshot(
        self,
        operator: int,
        partition: int,
        version: int,
        store: str = DEFAULT_STORE,
        family: str | None = None,
    ) -> Iterator[StateEntry]:
        """Everything that a partition of a store holds at a version, each key once, in no order.

        It is put together from the newest snapshot that can be used and the changes since. With a ``family``, only
        that is decoded. Raises
        ``VersionNotCommitted``, ``VersionPurged``, ``LineageMismatch``.
        """
        if version > 0:
            self.ended_commit(version - 1)
            yield from self._store_files(operator, partition, version, store, family).content(version)

    def _store_files(
        self, operator: int, partition: int, version: int, store: str, family: str | None
    ) -> StoreFiles:
        """The files of a partition of a store, as the batch that writes the version has them."""
        batch = version - 1
        described = self.ended_operator(operator, batch).store(store)
        if not 0 <= partition < described.partitions:
            message = f"The operator {operator} has no partition {partition} of {store!r}"
            raise CheckpointMissing(f"{message}, only 0 to {described.partitions - 1}.")
        return StoreFiles(
            files=self.files,
            directory=store_directory(operator, store, partition),
            provider=self.provider(batch),
            families=described.column_families,
            family_names=self._family_names.setdefault((operator, store, partition), {}),
            only=family,
            version=version,
            unique_id=lambda earlier: self._unique_id(operator, partition, store, earlier),
        )

    def _unique_id(self, operator: int, partition: int, store: str, version: int) -> str | None:
        """What checkpoint format 2 appends to a version's file names; None in format 1."""
        ids = self.ended_commit(version - 1)
        if operator not in ids:
            return None
        names = [item.name for item in self.ended_operator(operator, version - 1).stores]
        try:
            return ids[operator][partition][names.index(store)]
        except IndexError:
            message = f"commits/{version - 1} has no id for partition {partition} of operator {operator}"
            raise CheckpointMissing(f"{message}: the query's partitions have changed.") from None


def _missing_batch(files: CheckpointFiles, path: str) -> VersionPurged:
    message = f"{files.url} has no {path}: Spark has deleted it, or there was no such batch."
    return VersionPurged(f"{message} Start from a snapshot of a later batch.")
