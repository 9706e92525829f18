"""Makes a stopped broker's log what an unclean leader election leaves: without the records that came last."""

from __future__ import annotations

import contextlib
import shutil
import struct
from pathlib import Path

from forebay.task_ids import TopicPartition

_BATCH_HEAD = struct.Struct(">qi")
_LAST_OFFSET_DELTA_AT = 23


def cut_log(broker_directory: Path, tp: TopicPartition, end_offset: int) -> None:
    """Remove all record batches of a partition from an offset on, which must be the first one of a batch."""
    directory = broker_directory / "logs" / str(tp)
    segment = directory / f"{0:020}.log"
    content, at = segment.read_bytes(), 0
    while at < len(content):
        first_offset, length = _BATCH_HEAD.unpack_from(content, at)
        if first_offset >= end_offset:
            break
        at += _BATCH_HEAD.size + length
        (delta,) = struct.unpack_from(">i", content, at - _BATCH_HEAD.size - length + _LAST_OFFSET_DELTA_AT)
        assert first_offset + delta < end_offset, "the cut is within a batch"
    segment.write_bytes(content[:at])
    _forget_end(broker_directory, tp, end_offset)


def copy_log(broker_directory: Path, tp: TopicPartition, to: Path) -> None:
    """Copy a partition's files from a running broker; only its compaction may change them meanwhile."""
    directory, before = broker_directory / "logs" / str(tp), None
    while before != (before := _sizes(directory)):
        shutil.rmtree(to, ignore_errors=True)
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(directory, to)


def put_log(broker_directory: Path, tp: TopicPartition, copy: Path, end_offset: int) -> None:
    """Put an older copy of a partition's files, of a log with this end, in the place of a stopped broker's."""
    directory = broker_directory / "logs" / str(tp)
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)
    _forget_end(broker_directory, tp, end_offset)


def _sizes(directory: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found[path.name] = (status.st_ino, status.st_size)
    return found


def _forget_end(broker_directory: Path, tp: TopicPartition, end_offset: int) -> None:
    directory = broker_directory / "logs" / str(tp)
    # What the broker knew of the end is of the log as it was.
    for file in directory.iterdir():
        if file.suffix in (".index", ".timeindex", ".snapshot"):
            file.unlink()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        _lower(broker_directory / "logs" / name, tp, end_offset)


def _lower(checkpoint: Path, tp: TopicPartition, end_offset: int) -> None:
    if not checkpoint.exists():
        return
    version, count, *lines = checkpoint.read_text().splitlines()
    lowered = [
        f"{tp.topic} {tp.partition} {min(int(line.split()[2]), end_offset)}"
        if line.split()[:2] == [tp.topic, str(tp.partition)]
        else line
        for line in lines
    ]
    checkpoint.write_text("\n".join([version, count, *lowered]) + "\n")
