"""What a partition's log held at any offset and time: the model that answers are compared with."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.chaos.history import Cut, Fault, Item, Record, value_of
from tests.chaos.promises import CLOCK_SLACK_MS
from tests.chaos.topologies import RETENTION_MS, TTL_MS


class Version(NamedTuple):
    """One committed record of an item."""

    offset: int
    serial: int | None
    began_ms: float
    committed_ms: float
    time_ms: int
    """From when it is valid, or its window starts; 0 if the item is a key alone."""
    written_ms: float


class Clocks(NamedTuple):
    """What the wall clock of who answered may have shown meanwhile, on the boot-time clock."""

    earliest_ms: float
    latest_ms: float


class Ends:
    """A lower bound of where a log ended at any time, from the times by which each record was there."""

    def __init__(self, moments: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []
        for time_ms, offset in sorted(moments):
            self._times.append(time_ms)
            self._ends.append(max(offset + 1, self._ends[-1] if self._ends else 0))

    def at(self, time_ms: float) -> int:
        """Every offset below was there at this time."""
        at = bisect.bisect_right(self._times, time_ms)
        return self._ends[at - 1] if at else 0


@dataclass
class ItemHistory:
    """The versions of one item, in the order of the log."""

    ttl_ms: float = math.inf
    """For how long each lives from when it was written."""
    versions: list[Version] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    index_of: dict[int, int] = field(default_factory=dict)
    """By serial number."""

    def add(self, version: Version) -> None:
        """Append a version."""
        if version.serial is not None:
            self.index_of[version.serial] = len(self.versions)
        self.versions.append(version)
        self.offsets.append(version.offset)

    def index_at(self, position: float) -> int:
        """Which version is the item's in the fold below a position; -1 if there is none yet."""
        return bisect.bisect_left(self.offsets, position) - 1

    def index_as_of(self, time_ms: int) -> int:
        """The last version that is valid from this time or earlier; a key's versions are written in that order."""
        return bisect.bisect_right(self.versions, time_ms, key=lambda version: version.time_ms) - 1

    def committed_between(self, began_ms: float, ended_ms: float) -> range:
        """Which versions could first be read in an interval; later ones are committed later."""
        first, end = (
            bisect.bisect_left(self.versions, time_ms, key=lambda version: version.committed_ms)
            for time_ms in (began_ms, ended_ms)
        )
        return range(first, end)

    def same_in(self, other: ItemHistory, index: int) -> int:
        """Which version of the same item's history in another era a version is; -1 if that does not have it."""
        found = other.index_at(self.earliest_position(index))
        is_same = found >= 0 and index >= 0 and other.versions[found] == self.versions[index]
        return found if is_same else -1

    def is_absent(self, index: int, by_ms: float = -math.inf) -> bool:
        """Whether the item does not exist as of a version, or may have expired by a time."""
        if index < 0 or self.versions[index].serial is None:
            return True
        return self.versions[index].began_ms + self.ttl_ms <= by_ms

    def has_expired(self, index: int, by_ms: float) -> bool:
        """Whether a version has expired by a time for sure."""
        return self.versions[index].written_ms + self.ttl_ms <= by_ms

    def earliest_position(self, index: int) -> int:
        """The lowest position of which the fold has this version."""
        return 0 if index < 0 else self.offsets[index] + 1

    def latest_position(self, index: int) -> float:
        """The highest position of which the fold shows the same as of this version; deletions are alike."""
        following = index + 1
        while self.is_absent(index) and following < len(self.versions) and self.is_absent(following):
            following += 1
        return self.offsets[following] if following < len(self.versions) else math.inf

    def shown_by(self, item: Item, value: Any, newest: int, by_ms: float = -math.inf) -> int | None:
        """Which version shows a value, of absences by a time the last up to ``newest``; None if the item never
        had it."""
        if value is None:
            return next((i for i in range(newest, -2, -1) if self.is_absent(i, by_ms)), None)
        index = self.index_of.get(value.get("serial", -1)) if isinstance(value, dict) else None
        if index is None:
            return None
        version = self.versions[index]
        named = item if len(item) > 1 or not version.time_ms else (*item, version.time_ms)
        return index if value == value_of(named, value["serial"]) else None


class PartitionFold:
    """One partition's log in one era."""

    def __init__(self, records: list[Record], store: str = "") -> None:
        self._retention_ms = RETENTION_MS.get(store, math.inf)
        ttl_ms = TTL_MS.get(store, math.inf)
        records = sorted(records, key=lambda record: record.offset)
        committed = [record for record in records if record.committed_ms is not None]
        self.written = Ends((record.written_ms, record.offset) for record in records)
        self.committed = Ends((record.committed_ms or 0.0, record.offset) for record in committed)
        self.generated = Ends((record.generated_ms, record.offset) for record in committed)
        self.items: dict[Item, ItemHistory] = {}
        self.keys: dict[Item, ItemHistory] = {}
        """By the key alone, the versions of all its times."""
        self._items_of: dict[str, dict[Item, ItemHistory]] = {}
        self._offsets: list[int] = []
        self._newest_ms: list[int] = []
        """After each of these offsets, the newest time of a window."""
        for record in committed:
            time_ms = record.item[1] if len(record.item) > 1 else 0
            times = (record.began_ms, record.committed_ms or 0.0, time_ms, record.written_ms)
            version = Version(record.offset, record.serial, *times)
            history = self.items.setdefault(record.item, ItemHistory(ttl_ms))
            history.add(version)
            self._items_of.setdefault(record.item[0], {})[record.item] = history
            self.keys.setdefault(record.item[:1], ItemHistory(ttl_ms)).add(version)
            newest_ms = max(time_ms, self._newest_ms[-1] if self._newest_ms else 0)
            self._newest_ms.append(newest_ms)
            self._offsets.append(record.offset)

    def items_of(self, key: str) -> Iterable[tuple[Item, ItemHistory]]:
        """The items of one key, each with its versions."""
        return self._items_of.get(key, {}).items()

    def is_past_retention(self, item: Item, position: float) -> bool:
        """Whether a window is so far behind the newest one below a position that it is not returned any more."""
        if self._retention_ms == math.inf:
            return False
        at = bisect.bisect_left(self._offsets, position) - 1
        return at >= 0 and item[-1] + self._retention_ms <= self._newest_ms[at]

    def history(self, item: Item) -> ItemHistory:
        """An item's versions; none if it was never written."""
        return self.items.get(item) or self.keys.get(item) or ItemHistory()


class Eras:
    """One partition's log, era by era: when it is cut, it loses its newest records, and others take their place,
    or it loses its first ones.

    No worker runs while a log is cut. So whatever is answered is of the log as it is, or as it was before.
    """

    def __init__(self, records: Iterable[Record], cuts: Iterable[Cut] = (), store: str = "") -> None:
        self._cuts = sorted(cuts, key=lambda cut: cut.began_ms)
        self._ended = [cut.ended_ms for cut in self._cuts]
        written: list[list[Record]] = [[] for _ in range(len(self._cuts) + 1)]
        for record in records:
            written[self.at(record.began_ms)].append(record)
        logs = [written[0]]
        for cut, later in zip(self._cuts, written[1:], strict=True):
            kept = [record for record in logs[-1] if cut.beginning <= record.offset < cut.end]
            logs.append(kept + later)
        self.logs = [PartitionFold(log, store) for log in logs]

    @property
    def newest(self) -> PartitionFold:
        """The log as it is in the end."""
        return self.logs[-1]

    def at(self, time_ms: float) -> int:
        """The era of a time."""
        return bisect.bisect_right(self._ended, time_ms)

    def began_ms(self, time_ms: float) -> float:
        """When the era of a time began."""
        era = self.at(time_ms)
        return self._ended[era - 1] if era else -math.inf

    def common_end(self, era: int, other: int) -> float:
        """The offset before which the log is the same in two eras, but for a beginning that has moved; infinite
        if no offset was taken anew between them."""
        between = self._cuts[min(era, other) : max(era, other)]
        return min((cut.end for cut in between), default=math.inf)

    def shown_until_ms(self, era: int, other: int) -> float:
        """Until when the log shows that offsets were taken anew between two eras."""
        between = self._cuts[min(era, other) : max(era, other)]
        return min((cut.ended_ms + cut.shown_ms for cut in between if cut.end < math.inf), default=math.inf)


class Fold:
    """All logs of a run, each in its eras, and the clocks by which values expire."""

    def __init__(self, records: Iterable[Record], cuts: Iterable[Cut] = (), faults: Iterable[Fault] = ()) -> None:
        self._steps = [fault for fault in faults if fault.kind == "step-clock"]
        split: dict[tuple[str, int], list[Record]] = {}
        self.partition_of: dict[tuple[str, str], int] = {}
        for record in records:
            split.setdefault((record.store, record.partition), []).append(record)
            self.partition_of[record.store, record.item[0]] = record.partition
        self._cuts = [*cuts]
        of_each = {key: [cut for cut in self._cuts if (cut.store, cut.partition) == key] for key in split}
        self._partitions = {key: Eras(records, of_each[key], key[0]) for key, records in split.items()}
        self._empty = Eras([])

    def partition(self, store: str, partition: int) -> Eras:
        """The log of a partition; an empty one if nothing was written to it."""
        return self._partitions.get((store, partition), self._empty)

    def clocks(self, sent_ms: float, received_ms: float) -> Clocks:
        """What the wall clock of who answered between two times may have shown.

        What has expired by a clock that was ahead is gone, whatever it shows later, also for those who go on with
        a copy of the store or from a position: docs/topology.md.
        """
        was_ahead = any(step.began_ms <= received_ms for step in self._steps)
        is_wrong = was_ahead and any(step.ended_ms >= sent_ms for step in self._steps)
        return Clocks(
            -math.inf if is_wrong else sent_ms - CLOCK_SLACK_MS,
            math.inf if was_ahead else received_ms + CLOCK_SLACK_MS,
        )

    def was_cut(self, store: str, until_ms: float) -> bool:
        """Whether offsets of a store's log were taken anew by a time."""
        return any(cut.store == store and cut.ended_ms <= until_ms and cut.end < math.inf for cut in self._cuts)
