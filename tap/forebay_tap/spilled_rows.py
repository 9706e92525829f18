"""What a large batch writes, in sorted runs: memory holds one run, and a temporary file the others.

The file is deleted as it is made, and gone once it is closed. A batch that fails is read anew.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from tempfile import TemporaryFile
from typing import NamedTuple

import msgspec

Rows = Mapping[bytes, bytes | None]
"""Values by their keys; None is a tombstone."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes | None]]).decode


class _Block(NamedTuple):
    """Where some rows of a run are in the file."""

    start: int
    size_bytes: int


class SpilledRows:
    """Runs of rows by partition. Of one key, the row of the last run counts."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._runs: list[dict[int, list[_Block]]] = []

    def append(self, rows: Mapping[int, Rows], rows_at_once: int) -> None:
        """Write a run, of which so many rows are read at a time."""
        self._runs.append({partition: self._write(of_it, rows_at_once) for partition, of_it in rows.items()})
        self._file.flush()

    def partitions(self) -> set[int]:
        """Those that have rows."""
        return set(chain.from_iterable(self._runs))

    def rows(self, partition: int) -> Iterator[tuple[bytes, bytes | None]]:
        """A partition's rows in the order of their keys."""
        parts = [_RunPart(self._file.fileno(), run[partition]) for run in self._runs if partition in run]
        while parts:
            bound = min((part.keys[-1] for part in parts if part.blocks), default=None)
            merged: dict[bytes, bytes | None] = {}
            for part in parts:
                merged.update(part.take(bound))
            keys = sorted(merged)
            yield from zip(keys, map(merged.__getitem__, keys), strict=True)
            parts = [part for part in parts if part.keys]

    def _write(self, rows: Rows, rows_at_once: int) -> list[_Block]:
        keys, blocks = sorted(rows), []
        for first in range(0, len(keys), rows_at_once):
            some = keys[first : first + rows_at_once]
            data = _encode((some, [rows[key] for key in some]))
            self._file.write(data)
            blocks.append(_Block(self._end, len(data)))
            self._end += len(data)
        return blocks


class _RunPart:
    """One partition's rows in a run, those of one block in memory."""

    def __init__(self, fd: int, blocks: Sequence[_Block]) -> None:
        self._fd = fd
        self.blocks = deque(blocks)
        """Those whose rows are not in memory yet."""
        self.keys: list[bytes] = []
        """The keys of the next rows; none at the end."""
        self._values: list[bytes | None] = []
        self._fill()

    def take(self, bound: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
        """Remove the next rows up to a key; all in memory if it is None."""
        count = len(self.keys) if bound is None else bisect_right(self.keys, bound)
        taken = zip(self.keys[:count], self._values[:count], strict=True)
        self.keys, self._values = self.keys[count:], self._values[count:]
        self._fill()
        return taken

    def _fill(self) -> None:
        if not self.keys and self.blocks:
            start, size_bytes = self.blocks.popleft()
            self.keys, self._values = _decode(os.pread(self._fd, size_bytes, start))
