"""Changes since a snapshot, laid over what it holds: a snapshot is passed on as it is read, and never held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from forebay_tap.spark_checkpoint.records import Record

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
