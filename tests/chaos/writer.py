"""The writer of known history: it notes every record with the times between which it was written."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from forebay.clock import boot_ms, epoch_ms
from forebay.codecs.keys import canonical_json
from forebay.position import Position, encode_position, log_digest
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay.topology import Topology
from forebay_changelog import Heartbeat
from forebay_changelog.sqlite import batches as sqlite_batches
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_changelog.sqlite.compaction import CompactionLimits
from tests.chaos.history import Finding, Item, Record, value_of
from tests.chaos.topologies import RETENTION_MS

KEYS = 60
"""Of each store but the large one."""
LARGE, LARGE_KEYS = "large", 60_000
"""A store of which each key is written at the beginning: so many that whoever has none copies them from a worker,
and more than the smallest block cache holds."""
WINDOWS = 8
"""Of each key."""
MAX_ROWS = 6
"""Of a batch."""
DELETED = 0.15
"""The share of rows that delete."""
PAUSE_S = 0.04
PARTITIONS_PER_ROUND = 50
"""A store of more gets a batch, with a heartbeat for each, more seldom than the others."""
LIMITS = CompactionLimits(min_compaction_lag_ms=1_000, delete_retention_ms=4_000)
COMPACT_EVERY_S = 2.0

Row = tuple[Item, int | None]
"""An item with its new serial number, None to delete it."""


class LogWriter(Protocol):
    """Appends batches to one kind of log."""

    def write(self, spec: StoreSpec, rows: Mapping[int, list[Row]], generated_ms: float) -> list[Record]:
        """Append rows by partition, and heartbeats; returns their records, aborted ones too."""
        ...

    def renew(self) -> None:
        """Forget what is known of logs that have been cut, or replaced."""
        ...


class SqliteWriter:
    """Each partition's rows are a transaction; then a heartbeat goes to every partition."""

    def __init__(self, changelog: SqliteChangelog) -> None:
        self._changelog = changelog
        self._batches = itertools.count(1)

    def write(self, spec: StoreSpec, rows: Mapping[int, list[Row]], generated_ms: float) -> list[Record]:
        batch, as_of_ms = next(self._batches), int(epoch_ms())
        proofs = self._changelog.proofs(spec.topic)
        records: list[Record] = []
        for partition, some in rows.items():
            path = self._changelog.path(TopicPartition(spec.topic, partition))
            began_ms = boot_ms()
            count, end, _ = sqlite_batches.append_batch(
                str(path),
                [log_row(spec, row) for row in some],
                writer=spec.name,
                query_id="q",
                batch_id=batch,
                write_name=spec.name,
                timed=spec.kind == "versioned",
                proof=proofs.get(partition),
            )
            written_ms = boot_ms()
            for offset, (item, serial) in enumerate(some, end - count):
                times = (generated_ms, began_ms, written_ms, written_ms)
                records.append(Record(spec.name, partition, offset, item, serial, *times))
        beat = Heartbeat(as_of_ms, "q", batch).value()
        self._changelog.append_heartbeat(spec.topic, writer=spec.name, query_id="q", value=beat)
        return records

    def renew(self) -> None:
        """Nothing is known but what the files say."""


def log_row(spec: StoreSpec, row: Row) -> tuple[bytes, bytes | None, int]:
    """A row's key, value and timestamp in the log."""
    item, serial = row
    key = item[0].encode()
    if spec.kind == "window":
        key += item[1].to_bytes(8, "big")
    value = None if serial is None else canonical_json(value_of(item, serial))
    return key, value, item[1] if spec.kind == "versioned" else int(epoch_ms())


def key_of(store: str, number: int) -> str:
    """The key of a store with a number."""
    return f"{store[0]}{number:03d}"


def is_lasting(item: Item) -> bool:
    """Whether an item is never deleted, so that no lag explains its absence."""
    return int(item[0][1:]) % 3 == 0


class Batches:
    """Random batches of a store: puts and deletions, several of a key among them."""

    def __init__(self, seed: int) -> None:
        self._chooser = random.Random(seed)
        self._serials = itertools.count(1)
        self._last_ms = 0

    def serial(self) -> int:
        """One that no other value has."""
        return next(self._serials)

    def all_keys(self, spec: StoreSpec) -> dict[int, list[Row]]:
        """A batch with each key of the large store."""
        rows: dict[int, list[Row]] = {}
        for number in range(LARGE_KEYS):
            item = (key_of(spec.name, number),)
            rows.setdefault(spec.partition_of(item[0].encode()), []).append((item, self.serial()))
        return rows

    def next(self, spec: StoreSpec) -> dict[int, list[Row]]:
        """A batch's rows by partition."""
        rows: dict[int, list[Row]] = {}
        for _ in range(self._chooser.randint(1, MAX_ROWS)):
            item = self._item(spec)
            # Whoever restores the large store slowly would miss its tombstones again and again.
            is_kept = spec.name == LARGE or is_lasting(item)
            deletes = self._chooser.random() < DELETED and not is_kept
            serial = None if deletes else self.serial()
            rows.setdefault(spec.partition_of(item[0].encode()), []).append((item, serial))
        return rows

    def _item(self, spec: StoreSpec) -> Item:
        key = key_of(spec.name, self._chooser.randrange(LARGE_KEYS if spec.name == LARGE else KEYS))
        if spec.kind == "window":
            newest_s = int(epoch_ms()) // 1000 if spec.name in RETENTION_MS else WINDOWS - 1
            return (key, 1000 * (newest_s - self._chooser.randrange(WINDOWS)))
        if spec.kind == "versioned":
            # Those of a key never go back.
            self._last_ms = max(self._last_ms + 1, int(epoch_ms()))
            return (key, self._last_ms)
        return (key,)


class Writer:
    """Writes batches to all stores until it is stopped, in a thread of its own."""

    def __init__(
        self,
        topology: Topology,
        identity: Callable[[str], str],
        log: LogWriter,
        seed: int,
        on_record: Callable[[Record], None],
    ) -> None:
        self._topology, self._log, self._on_record = topology, log, on_record
        self._identity = identity
        self._batches = Batches(seed)
        self._failure: BaseException | None = None
        self._logs = {name: log_digest(identity(spec.topic)) for name, spec in topology.stores.items()}
        self.ends: dict[str, dict[int, int]] = {name: {} for name in topology.stores}
        """By store and partition, the offset after the newest record that can be read."""
        self.resting = threading.Lock()
        """Whoever holds it keeps the writer from writing."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self) -> None:
        """Write the large store, and then all in the background."""
        large = self._topology.stores[LARGE]
        self._append(large, self._batches.all_keys(large))
        self._thread.start()

    def stop(self) -> None:
        """Finish the batch in hand; raises what ended the writer before."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def write_to(self, spec: StoreSpec, partition: int, items: list[Item], *, deletes: bool = False) -> range:
        """Write items to a partition, whether it is theirs or not, until that can be read; returns the offsets."""
        while True:
            with self.resting:
                serials = [None if deletes else self._batches.serial() for _ in items]
                records = self._append(spec, {partition: list(zip(items, serials, strict=True))})
            if records[0].committed_ms is not None:
                return range(records[0].offset, records[-1].offset + 1)

    def position(self, store: str, partition: int) -> str:
        """The token of the newest record of a partition."""
        return encode_position(Position(self._logs[store], {partition: self.ends[store].get(partition, 0)}))

    def lose(self, store: str, partition: int, end: int) -> None:
        """Go on after a partition has lost what was from an offset on; called while the writer rests."""
        self.ends[store][partition] = min(end, self.ends[store].get(partition, 0))

    def begin_anew(self, spec: StoreSpec, reset: Callable[[], str]) -> None:
        """Have a store's log replaced by an empty one, and go on in that."""
        with self.resting:
            reset()
            self._log.renew()
            self.ends[spec.name] = {}
            self._logs[spec.name] = log_digest(self._identity(spec.topic))

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._failure = error

    def _write(self) -> None:
        for spec in self._stores():
            if self._stopping.wait(PAUSE_S):
                return
            with self.resting:
                self._append(spec, self._batches.next(spec))

    def _append(self, spec: StoreSpec, rows: Mapping[int, list[Row]]) -> list[Record]:
        records = self._log.write(spec, rows, boot_ms())
        for record in records:
            self._on_record(record)
            if record.committed_ms is not None:
                self.ends[spec.name][record.partition] = record.offset + 1
        return records

    def _stores(self) -> Iterator[StoreSpec]:
        for number in itertools.count():
            for spec in self._topology.stores.values():
                if number % (1 + spec.partitions // PARTITIONS_PER_ROUND) == 0:
                    yield spec


class Compactor:
    """Compacts the logs of SQLite again and again; Kafka does so itself."""

    def __init__(
        self, changelog: SqliteChangelog, topology: Topology, on_finding: Callable[[Finding], None]
    ) -> None:
        self._changelog, self._topology, self._on_finding = changelog, topology, on_finding
        self.resting = threading.Lock()
        """Whoever holds it keeps it from compacting."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compactor")

    def start(self) -> None:
        """Compact in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the store in hand."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(COMPACT_EVERY_S):
            for spec in self._topology.stores.values():
                with self.resting:
                    removed = self._changelog.compact(spec, LIMITS)
                if removed:
                    self._on_finding(Finding("compaction", f"{removed} of {spec.name}", boot_ms()))
