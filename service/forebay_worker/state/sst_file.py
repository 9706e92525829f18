"""Sorted files of changes, which a store takes in whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocksdict import DBCompressionType, Options, SstFileWriter

from forebay.state_store import CommittedOffset
from forebay.task_ids import TopicPartition
from forebay_worker.state.reserved_records import OFFSET_KEY, offsets_to_json
from forebay_worker.state.rocksdb_memory import filtered_blocks

_KEYS_PER_SYNC = 20_000


def write_sst(
    path: Path,
    changes: Iterable[Sequence[tuple[bytes, bytes | None]]],
    topic_partition: TopicPartition,
    committed: CommittedOffset,
) -> None:
    """Write changes (None deletes), part by part in the order of their keys, and the resulting offset as one file
    to ingest."""
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(filtered_blocks())
    options.set_compression_type(DBCompressionType.lz4())
    writer = SstFileWriter(options=options)
    writer.open(str(path))
    writer[OFFSET_KEY] = offsets_to_json({topic_partition: committed})
    not_synced = 0
    with path.open("rb") as file:
        for part in changes:
            for key, value in part:
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
            not_synced += len(part)
            # Done all at once at the end, it would hold up other syncs on this disk.
            if not_synced >= _KEYS_PER_SYNC:
                os.fdatasync(file.fileno())
                not_synced = 0
    writer.finish()
