"""How a batch of a changelog becomes part of a replica: checked, folded, committed with its offset, published."""

from __future__ import annotations

from forebay.clock import boot_ms, epoch_ms, latest_epoch_ms
from forebay.lag import EndOffset, Progress
from forebay.state_store import CommittedOffset
from forebay_changelog import Batch
from forebay_worker.tasks.expiry import swept_to_ms
from forebay_worker.tasks.folding import Fold, advance, fold_batch, is_misplaced, misplaced_keys
from forebay_worker.tasks.log_continuity import NotContinued, continuity_fault
from forebay_worker.tasks.replica import Replica


def resume(replica: Replica, committed: CommittedOffset) -> None:
    """Publish how far a replica's store is, before anything more is applied to it."""
    keys = map(bytes.fromhex, committed.misplaced_keys)
    # With the topology's present partitioner, they may be in the right partition.
    replica.doubt_keys(tuple(key for key in keys if _is_misplaced(replica, key)))
    replica.learn_partitions(committed.partitions_found)
    replica.ends.clear()
    replica.view.recent_changes.restart(committed.position)
    progress = progress_at_open(committed, boot_ms(), latest_epoch_ms())
    replica.last_checkpoint_boot_ms = progress.end_reached_boot_ms or 0.0
    replica.publish(
        progress=progress,
        was_checked=False,
        filling=bool(committed.filling),
        unproven=committed.unproven_by_any,
        beat_epoch_ms=committed.beat_epoch_ms,
        stream_time_ms=committed.stream_time_ms,
        swept_to_ms=swept_to_ms(replica.view.store),
        epochs=committed.epochs,
        proof=committed.proof,
        **_restored(replica, committed),
    )
    replica.key_watchers.wake_all()


def apply_batch(replica: Replica, batch: Batch) -> None:
    """Apply one batch and publish the progress.

    Raises ``StoreCorrupted`` if it cannot follow what is applied already, and ``BadRecord`` once what came before
    the record is applied.
    """
    before = replica.view.store.committed_offset(batch.topic_partition) or CommittedOffset(0)
    end_reached = _epoch(replica.view.progress.end_reached_boot_ms)
    fault = continuity_fault(replica.spec, replica.view.log, before, end_reached, batch)
    if fault is not None:
        if not isinstance(fault, NotContinued) or fault.has_lost is None:
            observe_end(replica, batch.end)
        raise fault
    replica.learn_log(batch.identity)
    replica.ends.observe(batch.end)
    if replica.predecessor is not None:
        observe_end(replica.predecessor, batch.end)
    replica.learn_partitions(batch.partitions)
    replica.learn_tombstone_life(batch.tombstone_life_ms)
    partitions_found = replica.view.partitions_found if replica.view.repartitioned else None
    settles = batch.end_reached and before.pending_end is not None
    has_news = settles or partitions_found != before.partitions_found
    if not batch.records and batch.position == before.position and before.restored and not has_news:
        _note_nothing_new(replica, before, batch)
        return
    batch, fold, skipped, stopped_by = fold_batch(replica.spec, before, batch)
    misplaced = misplaced_keys(replica.spec, replica.task.partition, batch.records, replica.view.misplaced_keys)
    after = advance(before, batch, fold, None, epoch_ms())
    progress = _progress(replica, after, batch, _as_of_after(replica, before, after))
    after = after._replace(
        last_caught_up_epoch_ms=_epoch(progress.last_caught_up_boot_ms),
        end_reached_epoch_ms=_epoch(progress.end_reached_boot_ms),
        misplaced_keys=tuple(key.hex() for key in misplaced),
        partitions_found=partitions_found,
    )
    if not set(misplaced) <= set(replica.view.misplaced_keys):
        # Before the content by which an answer could be wrong.
        replica.doubt_keys(misplaced)
    _commit(replica, before, after, fold)
    replica.doubt_keys(misplaced)
    replica.learn_epochs(batch)
    replica.last_checkpoint_boot_ms = batch.end.sent_boot_ms
    # Never behind the progress: whoever sees that finds the changes up to it.
    end_reached = after.position >= batch.end.offset and after.consistent_position == after.position
    replica.view.recent_changes.note(fold.changes, after.position, end_reached=end_reached)
    replica.publish(
        progress=progress,
        filling=bool(after.filling),
        unproven=after.unproven_by_any,
        beat_epoch_ms=after.beat_epoch_ms,
        stream_time_ms=after.stream_time_ms,
        **_restored(replica, after),
    )
    replica.key_watchers.wake(map(replica.spec.stored_keys.prefix_of, fold.changes))
    replica.records.applied += len(batch.records)
    replica.records.skipped += skipped
    replica.note_ahead(fold.ahead)
    if stopped_by is not None:
        raise stopped_by
    replica.failure = None


def observe_end(replica: Replica, end: EndOffset) -> None:
    """Publish the log's end while something else brings the replica forward."""
    replica.ends.observe(end)
    view = replica.view
    committed = view.store.committed_offset(replica.topic_partition) or CommittedOffset(0)
    observed = view.progress._replace(
        position=committed.position,
        applying_to=max(committed.content_before, view.progress.applying_to),
        consistent_position=committed.consistent_position,
        end_offset=end.offset,
        end_sent_boot_ms=end.sent_boot_ms,
        high_watermark=end.written_to,
    )
    replica.view = view.at(observed)
    if replica.predecessor is not None:
        observe_end(replica.predecessor, end)


def checkpoint_caught_up(replica: Replica) -> None:
    """Commit periodically that an idle log was read to its end: a restart must not look like an absence."""
    tp = replica.topic_partition
    last_caught_up = _epoch(replica.view.progress.last_caught_up_boot_ms)
    end_reached = _epoch(replica.view.progress.end_reached_boot_ms)
    before = replica.view.store.committed_offset(tp)
    if before is not None and before.restored and end_reached is not None:
        after = before._replace(last_caught_up_epoch_ms=last_caught_up, end_reached_epoch_ms=end_reached)
        replica.view.store.commit({tp: after})


def progress_at_open(committed: CommittedOffset, now_boot_ms: float, now_epoch_ms: float) -> Progress:
    """The progress of a store just opened, before its log was reached: the end is not known."""

    def boot(moment_epoch_ms: float | None) -> float | None:
        return None if moment_epoch_ms is None else now_boot_ms - (now_epoch_ms - moment_epoch_ms)

    until, reached = boot(committed.last_caught_up_epoch_ms), boot(committed.end_reached_epoch_ms)
    as_of = None if committed.pending_end is not None else _as_of_boot(committed, now_boot_ms, now_epoch_ms)
    # A moment in the future means that the clock is or was wrong.
    until, as_of, reached = (
        None if moment is None or moment > now_boot_ms else moment for moment in (until, as_of, reached)
    )
    return Progress(
        position=committed.position,
        applying_to=committed.content_before,
        consistent_position=committed.consistent_position,
        last_caught_up_boot_ms=until,
        as_of_boot_ms=as_of,
        end_reached_boot_ms=reached,
    )


def _note_nothing_new(replica: Replica, committed: CommittedOffset, batch: Batch) -> None:
    view = replica.view
    replica.view = view.at(_progress(replica, committed, batch, view.progress.as_of_boot_ms))
    # Only a commit can show whether what failed would now succeed.
    if replica.failure is not None or replica.is_checkpoint_due(batch.end.sent_boot_ms):
        replica.last_checkpoint_boot_ms = batch.end.sent_boot_ms
        checkpoint_caught_up(replica)
        replica.failure = None


def _commit(replica: Replica, before: CommittedOffset, after: CommittedOffset, fold: Fold) -> None:
    """Write changes and offset; from before the first write, readers know how far the content may be.

    They know of a filling before the content that they may miss something in, and until after all it was to have.
    So they do of what is unproven: its entries may be deleted by the same batch.
    """
    view = replica.view
    applying = view.progress._replace(applying_to=max(before.content_before, after.content_before))
    # In the middle of a compacted replay, content may be of later epochs.
    proof = after.proof if after.pending_end is None else None
    replica.publish(progress=applying, epochs=after.epochs, proof=proof)
    if after.filling and not view.filling:
        replica.publish(filling=True)
    if after.unproven:
        replica.publish(unproven=after.unproven_by_any)
    store = view.store
    for key, value in fold.changes.items():
        if value is None:
            store.delete(key)
        else:
            store.put(key, value)
    store.commit({replica.topic_partition: after})


def _restored(replica: Replica, committed: CommittedOffset) -> dict[str, bool]:
    """What changes once an end of the log is reached."""
    reached = committed.restored and not replica.view.restored
    return {"restored": True, "diverged": False} if reached else {}


def _is_misplaced(replica: Replica, key: bytes) -> bool:
    """Whether a key as in the log belongs into another partition."""
    plain = replica.spec.stored_keys.split_changelog(key, 0).plain
    return is_misplaced(replica.spec, replica.task.partition, plain)


def _progress(replica: Replica, committed: CommittedOffset, batch: Batch, as_of_boot_ms: float | None) -> Progress:
    before = replica.view.progress
    return Progress(
        position=committed.position,
        applying_to=committed.content_before,
        consistent_position=committed.consistent_position,
        beginning=batch.beginning,
        last_caught_up_boot_ms=before.last_caught_up_boot_ms,
        as_of_boot_ms=as_of_boot_ms,
        end_reached_boot_ms=before.end_reached_boot_ms,
    ).observed(replica.ends)


def _as_of_after(replica: Replica, before: CommittedOffset, after: CommittedOffset) -> float | None:
    """Up to when the source is in the store: as before, unless heartbeats said more or a gap was closed."""
    as_of_advanced = after.as_of_epoch_ms != before.as_of_epoch_ms or before.pending_end is not None
    if after.pending_end is None and as_of_advanced:
        return _as_of_boot(after, boot_ms(), epoch_ms())
    return replica.view.progress.as_of_boot_ms


def _as_of_boot(committed: CommittedOffset, now_boot_ms: float, now_epoch_ms: float) -> float | None:
    known = [as_of for as_of in committed.as_of_epoch_ms.values() if as_of is not None]
    if not known or len(known) < len(committed.as_of_epoch_ms):
        return None
    return now_boot_ms - (now_epoch_ms - min(known))


def _epoch(moment_boot_ms: float | None) -> float | None:
    return None if moment_boot_ms is None else epoch_ms() - (boot_ms() - moment_boot_ms)
