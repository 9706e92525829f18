"""Changes on their way into one sorted file: what a log-structured merge tree calls a run."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from operator import itemgetter

_ENOUGH_TO_JUDGE = 1_000
_FEWEST_PARTS = 64
_MOST_PARTS = 16_384

Change = tuple[bytes, bytes | None]
"""A stored key and its value, None to delete."""


class SortedRun:
    """The last change of each key, in the order of the keys.

    A dictionary of a million entries, and a sort of them, wait for main memory at nearly every step. So entries
    are parted by the first bytes of their keys, which keeps the order, into parts that fit the processor's cache.
    The first keys show how many bytes that takes; if later ones make too many parts of it, fewer bytes do.
    """

    def __init__(self) -> None:
        self._prefix_length = 0
        self._judged = False
        self._parts: defaultdict[bytes, dict[bytes, bytes | None]] = defaultdict(dict)

    def add(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Take later changes."""
        parts, length = self._parts, self._prefix_length
        for key, value in changes.items():
            parts[key[:length]][key] = value
        if not self._judged and len(parts[b""]) >= _ENOUGH_TO_JUDGE:
            self._judged = True
            self._part_by(_shortest_prefix(parts[b""]))
        elif len(parts) > _MOST_PARTS:
            self._part_by(_longest_prefix(parts, length))

    def in_order(self) -> Iterator[list[Change]]:
        """All changes, part by part in the order of their keys; what was given is dropped."""
        for prefix in sorted(self._parts):
            yield sorted(self._parts.pop(prefix).items(), key=itemgetter(0))

    def _part_by(self, length: int) -> None:
        old, self._parts, self._prefix_length = self._parts, defaultdict(dict), length
        for part in old.values():
            for key, value in part.items():
                self._parts[key[:length]][key] = value


def _shortest_prefix(keys: Mapping[bytes, object]) -> int:
    """The fewest bytes by which keys fall into enough parts: of so many keys, their whole length would do."""
    return next(length for length in itertools.count(1) if len({key[:length] for key in keys}) >= _FEWEST_PARTS)


def _longest_prefix(prefixes: Mapping[bytes, object], length: int) -> int:
    """The most bytes, fewer than so far, that make no more than half of the parts that there may be."""
    lengths = range(length - 1, 0, -1)
    return next((n for n in lengths if len({prefix[:n] for prefix in prefixes}) <= _MOST_PARTS // 2), 0)
