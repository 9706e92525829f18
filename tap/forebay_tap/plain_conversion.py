"""What becomes of changes that need nothing of what was before: records of a store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Any

from forebay_tap.key_encoder import KeyUnfit
from forebay_tap.mapping import TableMapping
from forebay_tap.spark_checkpoint.changes import ChangeBlock, StateEntry
from forebay_tap.spark_checkpoint.description import field_at
from forebay_tap.spark_checkpoint.unsafe_row import Row

log = logging.getLogger(__name__)

_ENTRIES_AT_ONCE = 2048

StoreRecord = tuple[bytes, bytes, bytes | None]
"""A record for the log: the key's plain bytes, which decide its partition, its whole key, and the value (None is a
tombstone).

A plain tuple: a class of its own would take a tenth of the time that a change takes.
"""


class PlainKeys:
    """Reads keys; those that the store's codec cannot have are left out, and the first is logged."""

    def __init__(self, mapping: TableMapping) -> None:
        self._mapping = mapping
        self._was_logged = False

    def plain(self, key: Row) -> bytes | None:
        """A key's plain bytes; None if it is left out."""
        try:
            return self._mapping.keys.plain(key)
        except KeyUnfit as error:
            if not self._was_logged:
                self._was_logged = True
                log.warning(
                    "a key of the state cannot be one of the store %r and is left out, as are others like it: %s",
                    self._mapping.spec.name,
                    error,
                )
            return None

    def plains(self, keys: Sequence[Row]) -> Sequence[bytes | None]:
        """Those of several keys."""
        try:
            return self._mapping.keys.plains(keys)
        except KeyUnfit:
            return list(map(self.plain, keys))


class PlainConversion:
    """Keys and windows: a change needs nothing of what was before, so many are converted at once.

    ``log_keys`` makes keys in the log of plain keys and those of the state.
    """

    remembers = False

    def __init__(
        self, mapping: TableMapping, log_keys: Callable[[Sequence[bytes], Sequence[Row]], Sequence[bytes]]
    ) -> None:
        self.mapping = mapping
        self._keys = PlainKeys(mapping)
        self._log_keys = log_keys

    def load(self, entries: Iterable[StateEntry], now_ms: int) -> Iterator[StoreRecord]:
        remaining = iter(entries)
        while some := list(islice(remaining, _ENTRIES_AT_ONCE)):
            _, keys, whole = zip(*some, strict=True)
            values = self._present(whole)
            yield from self._records(*(_where(values, keys, values) if None in values else (keys, values)))

    def apply(self, blocks: Iterable[ChangeBlock], now_ms: int) -> Iterator[StoreRecord]:
        return chain.from_iterable(self._records(block.keys, self._present(block.values)) for block in blocks)

    def _present(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values, None for those of keys without a state: Spark keeps them for their timeout alone."""
        path = self.mapping.table.state_path
        if path is None:
            return values
        return [None if value is None or field_at(value, path) is None else value for value in values]

    def _records(self, keys: Sequence[Row], values: Sequence[Any]) -> Iterator[StoreRecord]:
        if None in values and not self.mapping.deletes:
            keys, values = _where(values, keys, values)
        plains: Sequence[Any] = self._keys.plains(keys)
        if None in plains:
            plains, keys, values = _where(plains, plains, keys, values)
        return zip(plains, self._log_keys(plains, keys), self._texts(values), strict=True)

    def _texts(self, values: Sequence[Any]) -> Sequence[bytes | None]:
        if None not in values:
            return self.mapping.values.texts(values)
        texts = iter(self.mapping.values.texts([value for value in values if value is not None]))
        return [None if value is None else next(texts) for value in values]

    def expire(self, now_ms: int) -> Iterator[StoreRecord]:
        return iter(())

    def next_expiry_ms(self) -> int | None:
        return None

    def is_gone(self, key: bytes) -> bool:
        return self.mapping.deletes

    def clear(self) -> None:
        pass


def _where(present: Sequence[Any], *columns: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The columns without the rows in which the first is None."""
    chosen = [value is not None for value in present]
    return (list(compress(column, chosen)) for column in columns)
