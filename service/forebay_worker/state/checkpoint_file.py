"""The ``.checkpoint`` file of a task directory: where its legacy stores resume.

Only stores that do not manage their offsets need it (KIP-1035). The format is that of Kafka Streams'
``OffsetCheckpoint``: a line with the version, 0; a line with the number of entries; a line
``<topic> <partition> <offset>`` for each.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay.clock import epoch_ms
from forebay.errors import ForebayError
from forebay.file_access import read_regular
from forebay.task_ids import TopicPartition
from forebay_worker.state.fsync import remove_durably, write_durably

log = logging.getLogger(__name__)

CHECKPOINT_NAME = ".checkpoint"
OFFSET_UNKNOWN = -4
"""Kafka Streams' entry for a store of unknown offset."""

_VERSION = "0"
_COUNT = re.compile(r"[0-9]{1,9}")
_ENTRY = re.compile(r"([A-Za-z0-9._-]{1,249}) ([0-9]{1,9}) ([0-9]{1,18}|-4)")


class CheckpointFileError(ForebayError):
    """A ``.checkpoint`` file is malformed: the offsets of its task are unknown, its legacy stores are rebuilt."""


@dataclass(frozen=True)
class CheckpointFile:
    """The checkpoint of one task directory, which has one writer.

    An offset is the next one to apply. Kafka Streams up to 2.5 wrote this too; since 2.6 it writes the last one
    applied; reading that as the next one applies one record twice, without effect.
    """

    path: Path
    _moments: dict[TopicPartition, float] = field(default_factory=dict, compare=False)
    """When the log was last read up to each offset that was added here."""

    @classmethod
    def of(cls, task_path: Path) -> CheckpointFile:
        """The checkpoint of the task with this directory."""
        return cls(task_path / CHECKPOINT_NAME)

    def read(self) -> dict[TopicPartition, int]:
        """The known offsets, none if there is no file; raises ``CheckpointFileError`` naming file and line."""
        try:
            raw = read_regular(self.path)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise _malformed(self.path, 1, str(error)) from None
        return _parse(self.path, raw.decode("utf-8", "replace"))

    def drop_malformed(self) -> None:
        """Remove the file if it is malformed, and log that its offsets are lost; raises ``OSError``."""
        try:
            self.read()
        except CheckpointFileError as error:
            log.error("%s", error)
            remove_durably(self.path)

    def write(self, offsets: Mapping[TopicPartition, int], moment_epoch_ms: float | None = None) -> None:
        """Replace the file by one with these offsets, as of a moment, or remove it if there are none.

        Raises ``OSError``.
        """
        if not offsets:
            remove_durably(self.path)
            return
        lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
        write_durably(self.path, f"{_VERSION}\n{len(lines)}\n{''.join(lines)}", moment_epoch_ms)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Drop one topic-partition, which need not be in the file; raises ``CheckpointFileError``, ``OSError``."""
        self._keep(lambda line: line != topic_partition)

    def keep(self, topics: Collection[str]) -> None:
        """Drop every line but those of these topics; raises ``CheckpointFileError``, ``OSError``."""
        self._keep(lambda line: line.topic in topics)

    def _keep(self, wanted: Callable[[TopicPartition], bool]) -> None:
        # Written even if no line is dropped: a process that dropped one may have been killed before that was
        # durable.
        kept = {line: offset for line, offset in self.read().items() if wanted(line)}
        self.write(kept, self.moment_epoch_ms())

    def moment_epoch_ms(self) -> float | None:
        """When the offsets were written, in epoch milliseconds, the oldest of them; None without a file.

        The file's own time: no line appears younger than it is, whichever of them was written or removed last.
        """
        try:
            return self.path.stat().st_mtime * 1000
        except FileNotFoundError:
            return None

    def add(self, topic_partition: TopicPartition, offset: int, moment_epoch_ms: float | None = None) -> None:
        """Set one topic-partition's offset, leaving the others; raises ``CheckpointFileError``, ``OSError``.

        ``moment_epoch_ms`` is when the log was last read up to it, now if not given.
        """
        others, before = self.read(), self.moment_epoch_ms()
        others.pop(topic_partition, None)
        moments = {**self._moments, topic_partition: epoch_ms() if moment_epoch_ms is None else moment_epoch_ms}
        known = [moments.get(line, before) for line in (*others, topic_partition)]
        self.write({**others, topic_partition: offset}, min(moment for moment in known if moment is not None))
        self._moments.update(moments)


def _parse(path: Path, text: str) -> dict[TopicPartition, int]:
    *lines, rest = text.split("\n")
    if rest:
        raise _malformed(path, len(lines) + 1, f"{rest!r} has no end: the file is truncated")
    if not lines or lines[0] != _VERSION:
        raise _malformed(path, 1, f"the version is {lines[0] if lines else ''!r}, not {_VERSION!r}")
    count = _COUNT.fullmatch(lines[1]) if len(lines) > 1 else None
    if count is None:
        raise _malformed(path, 2, f"the number of entries is {lines[1] if len(lines) > 1 else ''!r}")
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines[2:], start=3):
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise _malformed(path, number, f"{line!r} is not '<topic> <partition> <offset>'")
        topic_partition = TopicPartition(entry[1], int(entry[2]))
        if topic_partition in offsets:
            raise _malformed(path, number, f"{topic_partition} occurs twice")
        offsets[topic_partition] = int(entry[3])
    if len(offsets) != int(count[0]):
        raise _malformed(path, 2, f"{int(count[0])} entries are announced, {len(offsets)} follow")
    return {topic_partition: offset for topic_partition, offset in offsets.items() if offset != OFFSET_UNKNOWN}


def _malformed(path: Path, line: int, what: str) -> CheckpointFileError:
    return CheckpointFileError(
        f"{path}, line {line}: {what}. The offsets of task {path.parent.name} are unknown, so its stores that "
        "do not manage their offsets are rebuilt from the log; nothing needs to be done."
    )
