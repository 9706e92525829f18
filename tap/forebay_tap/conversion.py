"""What becomes of each change of Spark's state: records of a store, and what must be remembered for later ones."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress, islice
from typing import Any

import msgspec

from forebay_tap.mapping import KeyUnfit, TableMapping
from forebay_tap.scratch import Kept, SessionIndex, SessionState, ValueIndex
from forebay_tap.spark_checkpoint.changes import ChangeBlock, StateEntry
from forebay_tap.spark_checkpoint.description import TableKind, field_at
from forebay_tap.spark_checkpoint.records import Kind
from forebay_tap.spark_checkpoint.unsafe_row import Row

log = logging.getLogger(__name__)

_TIME_BYTES = 8
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


class Conversion(ABC):
    """Makes records of one table's changes. Partitions of the state have no keys in common."""

    remembers = True
    """Whether it needs the state that changes are made to: ``load`` it first."""

    def __init__(self, mapping: TableMapping) -> None:
        self.mapping = mapping
        self._keys = PlainKeys(mapping)

    @abstractmethod
    def load(self, entries: Iterable[StateEntry], now_ms: int) -> Iterator[StoreRecord]:
        """The records of one partition of the state as it is at a version."""

    @abstractmethod
    def apply(self, blocks: Iterable[ChangeBlock], now_ms: int) -> Iterator[StoreRecord]:
        """The records of one partition's changes by one batch, in order: the last of a key counts."""

    def expire(self, now_ms: int) -> Iterator[StoreRecord]:
        """The records of what Spark hides from now on, though its state still holds it."""
        return iter(())

    def next_expiry_ms(self) -> int | None:
        """When something expires next; None if nothing does."""
        return None

    def is_gone(self, key: bytes) -> bool:
        """Whether a key in the log that is not in the state is to be deleted."""
        return self.mapping.deletes

    @abstractmethod
    def clear(self) -> None:
        """Forget the state that was loaded."""


class PlainConversion(Conversion):
    """Keys and windows: a change needs nothing of what was before, so many are converted at once.

    ``log_keys`` makes keys in the log of plain keys and those of the state.
    """

    remembers = False

    def __init__(
        self, mapping: TableMapping, log_keys: Callable[[Sequence[bytes], Sequence[Row]], Sequence[bytes]]
    ) -> None:
        super().__init__(mapping)
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

    def clear(self) -> None:
        pass


def _where(present: Sequence[Any], *columns: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The columns without the rows in which the first is None."""
    chosen = [value is not None for value in present]
    return (list(compress(column, chosen)) for column in columns)


def open_conversion(mapping: TableMapping) -> Conversion:
    """The conversion that a table needs."""
    return CONVERSIONS[mapping.table.kind](mapping)


def _of_keys(mapping: TableMapping) -> Conversion:
    if mapping.table.is_list or (mapping.table.expires_path is not None and mapping.deletes):
        return ValueConversion(mapping)
    return PlainConversion(mapping, lambda plains, _: plains)


def _of_windows(mapping: TableMapping) -> Conversion:
    start_ms = mapping.window_start_ms
    return PlainConversion(
        mapping,
        lambda plains, keys: [plain + _time(start_ms(key)) for plain, key in zip(plains, keys, strict=True)],
    )


class SessionConversion(Conversion):
    """Sessions, open ones included. In the log a session's end is part of its key: one that grows or is merged
    into another leaves its former place."""

    def __init__(self, mapping: TableMapping) -> None:
        super().__init__(mapping)
        self._sessions = SessionIndex()

    def load(self, entries: Iterable[StateEntry], now_ms: int) -> Iterator[StoreRecord]:
        for _, key, value in entries:
            plain = self._keys.plain(key)
            if plain is not None:
                session = SessionState(*self.mapping.session_ms(value))
                self._sessions.put(plain, session)
                yield self._record(plain, session, self.mapping.values.text(value))

    def apply(self, blocks: Iterable[ChangeBlock], now_ms: int) -> Iterator[StoreRecord]:
        removed: list[tuple[bytes, SessionState]] = []
        for _, key, value in _changes(blocks):
            plain = self._keys.plain(key)
            if plain is None:
                continue
            start_ms = self._start_ms(key) if value is None else self.mapping.session_ms(value)[0]
            end_ms = self._sessions.end_ms(plain, start_ms)
            if value is None:
                if end_ms is not None:
                    self._sessions.remove(plain, start_ms)
                    removed.append((plain, SessionState(start_ms, end_ms)))
                continue
            session = SessionState(*self.mapping.session_ms(value))
            if end_ms not in (None, session.end_ms):
                yield self._record(plain, SessionState(start_ms, end_ms or 0), None)
            self._sessions.put(plain, session)
            yield self._record(plain, session, self.mapping.values.text(value))
        for plain, session in removed:
            # Spark may remove a session and write it again, with the same times or a later end.
            if self._sessions.end_ms(plain, session.start_ms) == session.end_ms:
                continue
            if self.mapping.deletes or self._sessions.has_within(plain, session):
                yield self._record(plain, session, None)

    def is_gone(self, key: bytes) -> bool:
        plain, end, start = key[: -2 * _TIME_BYTES], key[-2 * _TIME_BYTES : -_TIME_BYTES], key[-_TIME_BYTES:]
        session = SessionState(_time_of(start), _time_of(end))
        return self.mapping.deletes or self._sessions.has_within(plain, session)

    def clear(self) -> None:
        self._sessions.clear()

    def _start_ms(self, key: Row) -> int:
        """A session's start is the last field of its key."""
        return int(key[-1]) // 1_000

    def _record(self, plain: bytes, session: SessionState, value: bytes | None) -> StoreRecord:
        return plain, plain + _time(session.end_ms) + _time(session.start_ms), value


class ValueConversion(Conversion):
    """Lists, to which Spark may append, and values that expire."""

    def __init__(self, mapping: TableMapping) -> None:
        super().__init__(mapping)
        self._values = ValueIndex()
        self._is_list = mapping.table.is_list

    def load(self, entries: Iterable[StateEntry], now_ms: int) -> Iterator[StoreRecord]:
        for _, key, value in entries:
            plain = self._keys.plain(key)
            if plain is not None:
                yield self._put(plain, self._elements(value), now_ms)

    def apply(self, blocks: Iterable[ChangeBlock], now_ms: int) -> Iterator[StoreRecord]:
        for kind, key, value in _changes(blocks):
            plain = self._keys.plain(key)
            if plain is None:
                continue
            if value is None:
                self._values.remove(plain)
                if self.mapping.deletes:
                    yield plain, plain, None
                continue
            before = self._values.get(plain) if kind == "merge" else None
            held = [] if before is None else _decode(before)
            yield self._put(plain, [*held, *self._elements(value)], now_ms)

    def expire(self, now_ms: int) -> Iterator[StoreRecord]:
        for plain, value in self._values.expired(now_ms):
            live = [element for element in _decode(value) if not _is_expired(element, now_ms)]
            if live:
                yield self._put(plain, live, now_ms)
            else:
                self._values.remove(plain)
                yield plain, plain, None

    def next_expiry_ms(self) -> int | None:
        return self._values.next_expiry_ms()

    def clear(self) -> None:
        self._values.clear()

    def _elements(self, value: Row) -> list[_Element]:
        rows: Iterable[Row] = value if self._is_list else (value,)
        expires_ms = self.mapping.expires_ms if self.mapping.deletes else lambda row: None
        return [_Element(expires_ms(row), msgspec.Raw(self.mapping.values.text(row))) for row in rows]

    def _put(self, plain: bytes, elements: list[_Element], now_ms: int) -> StoreRecord:
        expiries = [element.expires_ms for element in elements if element.expires_ms is not None]
        self._values.put(plain, Kept(_encode(elements), min(expiries, default=None)))
        live = [element.value for element in elements if not _is_expired(element, now_ms)]
        if self._is_list:
            text: bytes | None = _encode(live) if live or not elements else None
        else:
            text = bytes(live[0]) if live else None
        return plain, plain, text


CONVERSIONS: Mapping[TableKind, Callable[[TableMapping], Conversion]] = {
    "key-value": _of_keys,
    "window": _of_windows,
    "session": SessionConversion,
}
"""What opens the conversion of a table, by the kind of store that it can be."""


def _changes(blocks: Iterable[ChangeBlock]) -> Iterator[tuple[Kind, Row, Row | None]]:
    return chain.from_iterable(zip(block.kinds, block.keys, block.values, strict=True) for block in blocks)


class _Element(msgspec.Struct, array_like=True, frozen=True):
    """A list's element, or the only one of a value: its expiry, and its JSON text."""

    expires_ms: int | None
    value: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(list[_Element])


def _decode(value: bytes) -> list[_Element]:
    return _decoder.decode(value)


def _is_expired(element: _Element, now_ms: int) -> bool:
    return element.expires_ms is not None and element.expires_ms <= now_ms


def _time(time_ms: int) -> bytes:
    return time_ms.to_bytes(_TIME_BYTES, "big", signed=True)


def _time_of(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)
