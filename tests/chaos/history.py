"""What a run wrote, sent, received and broke. All times are milliseconds on the boot-time clock."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Item: TypeAlias = tuple[Any, ...]
"""What one record of a log is about: a key, or a key and the start of its window or version."""

BOTH_ROUTERS = "both"
"""The target of reads by a client that may choose."""


@dataclass(frozen=True)
class Record:
    """One record that the writer appended, heartbeats left out."""

    store: str
    partition: int
    offset: int
    item: Item
    serial: int | None
    """Unique in the run, and part of the value; None deletes."""
    generated_ms: float
    """When the source had it."""
    began_ms: float
    """Nobody can have read it before."""
    written_ms: float
    """It was in the log by then."""
    committed_ms: float | None
    """It could be read by then; None if its transaction was aborted."""


@dataclass(frozen=True)
class Portion:
    """What an answer says about one partition."""

    position: int
    """Next offset after everything that was read."""
    role: str
    host: str
    record_lag: int | None
    time_lag_ms: int | None
    age_ms: int | None

    @property
    def figures(self) -> dict[str, int | None]:
        """The lag, by the names of the bounds on it."""
        return {
            "max_record_lag": self.record_lag,
            "max_time_lag_ms": self.time_lag_ms,
            "max_age_ms": self.age_ms,
        }

    def named_ms(self, observed_at_ms: float) -> float:
        """The time that its lag names; see ``named_ms``."""
        return named_ms(observed_at_ms, self.record_lag, self.time_lag_ms, self.age_ms)


@dataclass(frozen=True)
class Scope:
    """What a page was asked for: items of a key or of all, from ``low`` to before ``high``, between two others."""

    key: str | None = None
    low: Any = None
    high: Any = None
    after: Item | None = None
    """The last item of the page before."""
    last: Item | None = None
    """The last item of a page that is not the list's end."""
    reverse: bool = False

    def covers(self, item: Item) -> bool:
        """Whether an item that exists belongs to the page."""
        if self.key is not None and item[0] != self.key:
            return False
        place = item[-1]
        if (self.low is not None and place < self.low) or (self.high is not None and place >= self.high):
            return False
        least, most = (self.last, self.after) if self.reverse else (self.after, self.last)
        if self.after is not None and item == self.after:
            return False
        return (least is None or item >= least) and (most is None or item <= most)


@dataclass(frozen=True)
class Reached:
    """How much of a partition an event's id says was sent, in offsets of its log."""

    since: int
    """Every change before it was sent; 0 while the state is being sent."""
    upper: int
    """Nothing that was sent is of a later change."""


@dataclass(frozen=True)
class Followed:
    """What one event of a stream of a store's changes says, beside its items and their partition."""

    stream: str
    """The follower, through all its connections."""
    event: str
    """``opened``, ``ended``, or the name of the event."""
    keys: tuple[str, ...] | None = None
    """Those that are followed; None for all with the prefix."""
    prefix: str = ""
    partitions: tuple[int, ...] = ()
    """Of ``reset`` and ``problem`` those that it names, else all that are followed."""
    reached: Mapping[int, Reached] | None = None
    """What the event's id says, or of ``opened`` the id that was sent; None without one."""
    lag: tuple[int | None, int | None, int | None] | None = None
    """Of an event ``lag`` alone."""

    def covers(self, item: Item) -> bool:
        """Whether an item is followed."""
        return (self.keys is None or item[0] in self.keys) and item[0].startswith(self.prefix)


@dataclass(frozen=True)
class Read:
    """One answer: of a key, of a page, of one key of a batch, or one event of a stream."""

    reader: str
    kind: str
    tier: str
    target: str
    store: str
    sent_ms: float
    received_ms: float
    status: int
    """That of the answer or of the problem; 0 without any."""
    problem: str = ""
    """The problem's name, or what the connection failed with."""
    bounds: Mapping[str, int] = field(default_factory=dict)
    require_active: bool = False
    min_position: Mapping[int, int] = field(default_factory=dict)
    """The offset to be reached, by partition."""
    position_ms: float | None = None
    """When the answer was received whose position that is; None of one that was written, which names no epoch."""
    session: str = ""
    """Reads of one session, or of one stream, never go back."""
    items: tuple[tuple[Item, Any], ...] = ()
    """Each item with its value; None if there is none."""
    as_of_ms: int | None = None
    """Of a read of a version: the latest time from which it may be valid."""
    portions: Mapping[int, Portion] = field(default_factory=dict)
    scope: Scope | None = None
    """Of lists only."""
    partition: int | None = None
    """That of the key, for reads of one by plain HTTP."""
    followed: Followed | None = None
    """Of events of a store's stream only."""


@dataclass(frozen=True)
class Fault:
    """What was broken, and until when; the target of a process is its address."""

    kind: str
    target: str
    began_ms: float
    ended_ms: float
    episode: int


@dataclass(frozen=True)
class Cut:
    """A log's loss of its newest or of its first records, between two times at which no worker ran."""

    store: str
    partition: int
    end: float
    """The first offset that was lost, and that other records have taken since; infinite if the newest stayed."""
    began_ms: float
    ended_ms: float
    beginning: int = 0
    """The first offset that stayed."""
    shown_ms: float = math.inf
    """For how long the log shows, once records have taken the place of the lost ones, that they did: on Kafka
    until they are compacted."""


@dataclass(frozen=True)
class Doubt:
    """A time in which keys of a store are in partitions that are not theirs, so that nothing of it is proven."""

    store: str
    began_ms: float
    """They were there by then."""
    ended_ms: float
    """Infinite if they stay."""
    partition: int | None = None
    """The one that has them, None if any may."""
    begin: int = 0
    """Who has applied what is before it has one of them in that partition."""
    end: float = math.inf
    """The offset of the first record that deletes one there."""


@dataclass(frozen=True)
class Calm:
    """A time in which nothing is broken, and every partition has all its replicas, caught up."""

    began_ms: float
    ended_ms: float


@dataclass(frozen=True)
class Overload:
    """A time in which the machine had too little time for all that ran on it."""

    began_ms: float
    ended_ms: float


@dataclass(frozen=True)
class Finding:
    """What the run itself found wrong or reached: a process that ended, a stack trace, a rebuild."""

    kind: str
    detail: str
    at_ms: float


Entry: TypeAlias = Record | Read | Fault | Calm | Overload | Finding | Cut | Doubt
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Record, Read, Fault, Calm, Overload, Finding, Cut, Doubt)
}


@dataclass
class History:
    """Everything of one run."""

    records: list[Record] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    calms: list[Calm] = field(default_factory=list)
    overloads: list[Overload] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Append an entry; any thread may."""
        match entry:
            case Record():
                self.records.append(entry)
            case Read():
                self.reads.append(entry)
            case Fault():
                self.faults.append(entry)
            case Calm():
                self.calms.append(entry)
            case Overload():
                self.overloads.append(entry)
            case Finding():
                self.findings.append(entry)
            case Cut():
                self.cuts.append(entry)
            case Doubt():
                self.doubts.append(entry)

    def overloaded(self, began_ms: float, ended_ms: float) -> bool:
        """Whether the machine was overloaded at some time of an interval."""
        return any(one.began_ms < ended_ms and began_ms < one.ended_ms for one in self.overloads)

    def overloaded_s(self) -> float:
        """For how long the machine was overloaded."""
        total_ms, until_ms = 0.0, float("-inf")
        for one in sorted(self.overloads, key=lambda one: one.began_ms):
            total_ms += max(0.0, one.ended_ms - max(one.began_ms, until_ms))
            until_ms = max(until_ms, one.ended_ms)
        return total_ms / 1_000

    def entries(self) -> Iterable[Entry]:
        """All entries, kind by kind."""
        yield from itertools.chain(self.records, self.reads, self.faults, self.calms)
        yield from itertools.chain(self.overloads, self.findings, self.cuts, self.doubts)

    def save(self, path: Path) -> None:
        """Write one JSON document a line."""
        with path.open("w") as file:
            for entry in self.entries():
                file.write(json.dumps({"entry": type(entry).__name__, **asdict(entry)}) + "\n")

    @classmethod
    def load(cls, path: Path) -> History:
        """The inverse of ``save``."""
        history = cls()
        with path.open() as file:
            for line in file:
                document = json.loads(line)
                history.add(_KINDS[document.pop("entry")](**_restored(document)))
        return history


def _restored(document: dict[str, Any]) -> dict[str, Any]:
    """A document with the types that JSON has not."""
    if "item" in document:
        document["item"] = tuple(document["item"])
    if "items" in document:
        document["items"] = tuple((tuple(item), value) for item, value in document["items"])
        document["portions"] = {int(p): Portion(**portion) for p, portion in document["portions"].items()}
        document["min_position"] = {int(p): offset for p, offset in document["min_position"].items()}
        if document["scope"] is not None:
            scope = document["scope"]
            ends = {name: tuple(scope[name]) if scope.get(name) else None for name in ("after", "last")}
            document["scope"] = Scope(**{**scope, **ends})
        if document.get("followed") is not None:
            document["followed"] = _restored_followed(document["followed"])
    return document


def _restored_followed(document: dict[str, Any]) -> Followed:
    for name in ("keys", "partitions", "lag"):
        document[name] = None if document[name] is None else tuple(document[name])
    if document["reached"] is not None:
        document["reached"] = {int(p): Reached(**reached) for p, reached in document["reached"].items()}
    return Followed(**document)


def named_ms(observed_at_ms: float, record_lag: int | None, time_lag_ms: int | None, age_ms: int | None) -> float:
    """The time as of which a lag says that an answer is, if it names none the earliest."""
    if record_lag is not None:
        return observed_at_ms
    return observed_at_ms - min((lag for lag in (time_lag_ms, age_ms) if lag is not None), default=math.inf)


def value_of(item: Item, serial: int) -> dict[str, Any]:
    """The value that the writer gives an item: it names the item, so that another's is recognised."""
    return {"of": list(item), "serial": serial}
