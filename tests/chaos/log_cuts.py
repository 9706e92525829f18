"""A log that loses its newest records while no worker runs, and goes on with others, or its first records."""

from __future__ import annotations

import contextlib
import functools
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from examples.broker import Broker
from forebay.clock import boot_ms
from forebay.task_ids import TopicPartition
from forebay_changelog.sqlite.log_file import partition_path
from tests.chaos.deployment import Deployment
from tests.chaos.history import Cut
from tests.chaos.kafka_writer import MIN_COMPACTION_LAG_MS
from tests.chaos.log_faults import Injury
from tests.chaos.writer import Writer
from tests.support.kafka_log_files import copy_log, put_log

KEPT_RECORDS = 100
"""Fewer than this stay where a beginning is moved."""
LOST_S = 1.0
"""At least what is written in this time is lost."""


class LogFiles(Protocol):
    """The files of a kind of log."""

    breaking: threading.Lock
    """Held by who breaks the log in any way."""
    shown_ms: float
    """For how long a log shows that it was cut."""

    def keep(self, tp: TopicPartition) -> int:
        """Copy a partition's log, which nobody writes to now; returns its end."""
        ...

    def put_back(self, tp: TopicPartition, end: int) -> None:
        """Put the copy, which has this end, in the place of the log, which nobody uses now."""
        ...


class SqliteLogFiles:
    """Databases in a directory; ``resting`` keeps the compactor from them."""

    shown_ms = math.inf

    def __init__(self, log: Path, breaking: threading.Lock, resting: threading.Lock) -> None:
        self._log, self.breaking, self._resting = log, breaking, resting
        self._copy = log.with_name("copy.db")

    def keep(self, tp: TopicPartition) -> int:
        self._copy.unlink(missing_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self._path(tp))) as log,
            contextlib.closing(sqlite3.connect(self._copy)) as copy,
        ):
            log.backup(copy)
            return int(copy.execute("SELECT next_offset FROM state").fetchone()[0])

    def put_back(self, tp: TopicPartition, end: int) -> None:
        with self._resting:
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path(tp)}{suffix}").unlink(missing_ok=True)
            shutil.copy(self._copy, self._path(tp))

    def _path(self, tp: TopicPartition) -> str:
        return partition_path(str(self._log), *tp)


class KafkaLogFiles:
    """Directories of the only broker; ``end_of`` tells a partition's end, ``renew`` has the writer forget it."""

    shown_ms = float(MIN_COMPACTION_LAG_MS)

    def __init__(
        self,
        broker: Broker,
        directory: Path,
        breaking: threading.Lock,
        end_of: Callable[[TopicPartition], int],
        renew: Callable[[], None],
    ) -> None:
        self._broker, self._directory, self.breaking = broker, directory, breaking
        self._end_of, self._renew = end_of, renew
        self._copy = directory / "copy"

    def keep(self, tp: TopicPartition) -> int:
        end = self._end_of(tp)
        copy_log(self._directory, tp, self._copy)
        return end

    def put_back(self, tp: TopicPartition, end: int) -> None:
        self._broker.stop()
        put_log(self._directory, tp, self._copy, end)
        self._broker.start()
        self._renew()


class LogCuts:
    """Cuts the log of one partition of a store, with all workers stopped in order, and the writer at rest.

    ``move_beginning`` removes the records before an offset, where a log can be told to.
    """

    def __init__(
        self,
        deployment: Deployment,
        writer: Writer,
        files: LogFiles,
        report: Callable[[Cut], None],
        move_beginning: Callable[[TopicPartition, int], None] | None = None,
    ) -> None:
        self._deployment, self._writer, self._files, self._report = deployment, writer, files, report
        self.injuries: dict[str, Callable[[int], Injury]] = {"cut-log": self._cut_log}
        if move_beginning is not None:
            self.injuries["move-beginning"] = functools.partial(self._move_beginning, move_beginning)

    @contextlib.contextmanager
    def _move_beginning(self, move: Callable[[TopicPartition, int], None], target: int) -> Iterator[str]:
        """Of a key-value store, of which the log's first record is what the first key's value was."""
        spec = next(spec for spec in self._deployment.topology.stores.values() if spec.kind == "key-value")
        tp = TopicPartition(spec.topic, target % spec.partitions)
        with self._files.breaking, self._deployment.without_workers():
            with self._writer.resting:
                began_ms = boot_ms()
                beginning = self._writer.ends[spec.name].get(tp.partition, 0) - target % KEPT_RECORDS
                if beginning > 0:
                    move(tp, beginning)
                    self._report(Cut(spec.name, tp.partition, math.inf, began_ms, boot_ms(), beginning))
            yield str(tp)

    @contextlib.contextmanager
    def _cut_log(self, target: int) -> Iterator[str]:
        specs = list(self._deployment.topology.stores.values())
        spec = specs[target % len(specs)]
        tp = TopicPartition(spec.topic, target % spec.partitions)
        with self._files.breaking:
            with self._writer.resting:
                end = self._files.keep(tp)
            time.sleep(LOST_S)
            with self._deployment.without_workers():
                with self._writer.resting:
                    began_ms = boot_ms()
                    self._files.put_back(tp, end)
                    self._writer.lose(spec.name, tp.partition, end)
                    shown_ms = self._files.shown_ms
                    self._report(Cut(spec.name, tp.partition, end, began_ms, boot_ms(), shown_ms=shown_ms))
                yield str(tp)
