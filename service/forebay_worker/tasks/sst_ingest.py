"""How a file that a restore process has made becomes part of a replica."""

from __future__ import annotations

import logging
from pathlib import Path

from forebay.state_store import CommittedOffset
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.tasks.restoration import Restoration
from forebay_worker.tasks.restore_process import RestoreReport

log = logging.getLogger(__name__)


def ingest(restoration: Restoration, report: RestoreReport) -> bool:
    """Ingest a file if it begins at the store's offset and the log is the store's; returns whether the job may
    continue."""
    replica = restoration.replica
    assert report.path is not None
    path = Path(report.path)
    tp = replica.topic_partition
    store = replica.view.store
    committed = store.committed_offset(tp) or CommittedOffset(0)
    fits = not restoration.cancelled and report.position_from == committed.position
    if not fits or replica.view.log not in (None, report.log):
        path.unlink(missing_ok=True)
        return False
    assert isinstance(store, RocksDbStore)
    offset = report.offset
    if replica.view.log is None:
        replica.learn_log(report.log)
        store.commit({})
    progress = replica.view.progress
    replica.publish(
        progress=progress._replace(applying_to=max(committed.content_before, offset.content_before)),
        filling=replica.view.filling or bool(offset.filling),
        epochs=offset.epochs,
        proof=offset.proof if offset.pending_end is None else None,
        unproven=offset.unproven_by_any,
    )
    store.ingest(path, tp, offset)
    replica.publish(
        progress=progress._replace(
            position=offset.position,
            applying_to=offset.content_before,
            consistent_position=offset.consistent_position,
        ),
        filling=bool(offset.filling),
        unproven=offset.unproven_by_any,
        beat_epoch_ms=offset.beat_epoch_ms,
        stream_time_ms=offset.stream_time_ms,
    )
    replica.failure = replica.storage_fault = None
    replica.doubt_keys(tuple(map(bytes.fromhex, offset.misplaced_keys)))
    replica.records_applied += report.records
    replica.records_skipped += report.skipped
    replica.note_ahead(report.ahead)
    restoration.records += report.records
    restoration.fruitless = restoration.refused = 0
    log.info(
        "%s: %d records restored, %.0f a second; seconds left: %s",
        tp,
        restoration.records,
        restoration.records_per_second,
        restoration.seconds_left,
    )
    return True
