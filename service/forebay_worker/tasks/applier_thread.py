"""The applier: one thread that follows the changelogs of every replica this worker holds."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from queue import SimpleQueue

from forebay.clock import boot_ms
from forebay.errors import ForebayError
from forebay.lag import EndOffset
from forebay.logs import LogThrottle
from forebay.state_store import CommittedOffset, StoreCorrupted
from forebay.task_ids import TopicPartition
from forebay_changelog import Batch, Changelog, Consumer, Wake
from forebay_worker.tasks.apply import apply_batch, checkpoint_caught_up, observe_end, resume
from forebay_worker.tasks.phases import ReplicaPhase
from forebay_worker.tasks.replica import Replica

log = logging.getLogger(__name__)

_SLICE_S = 0.0003
"""Processor time of uninterrupted work. Why: a read that arrives meanwhile waits that long. RocksDB writes hold
Python's lock for about a microsecond a record."""
_PAUSE_BY_WORK = 2.0
"""A pause, as a multiple of the work before it: writing never takes more than a third of the lock."""
_MAX_PAUSE_S = 0.02
"""However long the work took, such as the start of a rebuild."""
_MIN_TURN_S = 0.002
"""From one poll of a log that flows to the next at least: what comes together is committed together."""
MAX_RECORDS_PER_POLL = 2_000
RECORDS_PER_COMMIT = 128
"""A commit of so many takes a quarter of a millisecond, during which no read is answered."""
_PAUSE_BY_NOTING = 19
"""Pause between rounds, as a multiple of a round's cost: keeps 1,000 idle replicas at 5 % of a core."""
_POLL_INTERVAL_MS = 10.0
_LONGEST_PAUSE_MS = 250.0
_NOTED_AT_ONCE = 100
_READERS_TURN_S = 0.0001
"""How long Python's lock is released between them: a waiting thread needs that long to wake."""
_PACED_POLL_S = 0.1
_RETRY_MS = 2_000.0
_HOUSEKEEPING_MS = 200.0
_REASONS_AT_ONCE = 5


class ReaderYield:
    """One thread's work in slices, each followed by a pause in which readers run undisturbed.

    ``work_s`` is the thread's processor time: what it waits for the lock is no work.
    """

    def __init__(
        self, work_s: Callable[[], float] = time.thread_time, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._work_s = work_s
        self._sleep = sleep
        self._since_s = 0.0

    def begin(self) -> None:
        """Count the work from here on."""
        self._since_s = self._work_s()

    def after_slice(self) -> None:
        """Pause if a slice's worth of work was done since the last pause."""
        used_s = self._work_s() - self._since_s
        if used_s >= _SLICE_S:
            self._sleep(min(used_s * _PAUSE_BY_WORK, _MAX_PAUSE_S))
            self._since_s = self._work_s()

    def pause_before_poll_s(self) -> float:
        """How long to wait before the next poll, while records keep coming."""
        used_s = self._work_s() - self._since_s
        return min(max(_MIN_TURN_S, used_s * _PAUSE_BY_WORK), _MAX_PAUSE_S)


class Applier:
    """Polls the changelog and applies what it finds, in batches small enough that readers are not held up.

    ``records_per_second`` limits the pace over all replicas; 0 means no limit. ``storage_fault(error)`` describes
    the machine's refusal behind an error, None if there is none. ``headed`` are the topics whose records are kept
    with their headers. Called in the applier's thread are
    ``on_damaged(replica, error)`` for a store that is found damaged, ``on_end_reached(replica)`` once a replica
    reaches an end of its log for the first time, and ``housekeeping()`` a few times a second.
    """

    def __init__(
        self,
        changelog: Changelog,
        records_per_second: int,
        storage_fault: Callable[[Exception], str | None],
        on_damaged: Callable[[Replica, StoreCorrupted], None],
        on_end_reached: Callable[[Replica], None],
        housekeeping: Callable[[], None],
        headed: Collection[str] = (),
    ) -> None:
        self._consumer: Consumer = changelog.consumer(headed=headed)
        self._current_due_boot_ms = 0.0
        self._records_per_second = records_per_second
        self._storage_fault = storage_fault
        self._on_damaged = on_damaged
        self._on_end_reached = on_end_reached
        self._housekeeping = housekeeping
        self._housekept_boot_ms = 0.0
        self._replicas: dict[TopicPartition, Replica] = {}
        """Those that follow their logs, or are suspended."""
        self._logged = LogThrottle()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = Wake()
        self._yield = ReaderYield()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="forebay-applier", daemon=True)

    def start(self) -> None:
        """Start following."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the current batch, run what it was to run, and end the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._consumer.close()

    def run(self, function: Callable[[], None]) -> None:
        """Run a function in the applier's thread, between two batches; if it fails, that is logged."""

        def safely() -> None:
            try:
                function()
            except Exception:
                log.exception("a request to the applier failed")

        self._commands.put(safely)
        self._wake.set()

    def follow(self, replica: Replica) -> None:
        """Apply a replica's log from its committed offset on; in the applier's thread."""
        committed = replica.view.store.committed_offset(replica.topic_partition) or CommittedOffset(0)
        self._resume(replica, committed)
        replica.storage_fault = None
        self._replicas[replica.topic_partition] = replica
        self._assign(replica, committed)

    def unfollow(self, replica: Replica) -> None:
        """Stop applying a replica's log; in the applier's thread."""
        self._replicas.pop(replica.topic_partition, None)
        replica.storage_fault = replica.read_failure = None
        self._consumer.unassign(replica.topic_partition)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self._turn()
            except Exception:
                # Whatever it is, the other replicas must be followed.
                log.exception("applying failed; it goes on in %.0f s", _RETRY_MS / 1000)
                self._follow_all_again()
                self._wake.wait(_RETRY_MS / 1000)
        self._run_commands()

    def _turn(self) -> None:
        """Apply what is new, and wait until something may be."""
        self._run_commands()
        self._keep_house()
        applied = 0
        self._yield.begin()
        for batch in self._consumer.poll(self._records_per_poll()):
            replica = self._replicas.get(batch.topic_partition)
            if replica is not None:
                applied += len(batch.records)
                self._apply_in_slices(replica, batch)
        due_in_ms = self._current_due_boot_ms - boot_ms()
        if due_in_ms <= 0:
            due_in_ms = self.note_current()
        if not applied:
            self._consumer.wait(self._wake, due_in_ms / 1000)
        elif self._records_per_second:
            self._wake.wait(applied / self._records_per_second)
        else:
            self._wake.wait(self._yield.pause_before_poll_s())

    def _records_per_poll(self) -> int:
        """How many records of one partition to take at once."""
        if not self._records_per_second:
            return MAX_RECORDS_PER_POLL
        share = int(self._records_per_second * _PACED_POLL_S / max(1, len(self._replicas)))
        return min(max(1, share), MAX_RECORDS_PER_POLL)

    def _run_commands(self) -> None:
        # Calls that these add are run after the next poll.
        for _ in range(self._commands.qsize()):
            self._commands.get_nowait()()

    def _apply_in_slices(self, replica: Replica, batch: Batch) -> None:
        for part in batch.slices(RECORDS_PER_COMMIT):
            if not self._apply_safely(replica, part):
                # It is read again from where its store is.
                return
            self._yield.after_slice()

    def _apply_safely(self, replica: Replica, batch: Batch) -> bool:
        try:
            applied = self.apply(replica, batch)
        except Exception as error:
            self._give_up_for_now(replica, error, batch.end)
            return False
        replica.storage_fault = None
        return applied

    def apply(self, replica: Replica, batch: Batch) -> bool:
        """Apply one batch, and return whether the next may follow; raises ``BadRecord`` once all before it is
        applied."""
        try:
            with self._restored_reported(replica):
                apply_batch(replica, batch)
        except StoreCorrupted as corrupted:
            self._on_damaged(replica, corrupted)
            return False
        return True

    @contextlib.contextmanager
    def _restored_reported(self, replica: Replica) -> Iterator[None]:
        restored = replica.view.restored
        try:
            yield
        finally:
            if replica.view.restored and not restored:
                self._on_end_reached(replica)

    def _give_up_for_now(self, replica: Replica, error: Exception, end: EndOffset) -> None:
        """What was applied is still served; the rest is retried, and the lag grows meanwhile."""
        if isinstance(error, StoreCorrupted):
            self._on_damaged(replica, error)
            return
        tp = replica.topic_partition
        storage_fault = self._storage_fault(error)
        again = f"retrying every {_RETRY_MS / 1000:.0f} s"
        replica.failure = storage_fault or str(error) or repr(error)
        if storage_fault is not None:
            replica.storage_fault = storage_fault
            # A full disk fails every store, and the log may be on it.
            if self._logged.allow(storage_fault):
                log.error("%s, and what meets the same, could not be applied; %s. %s", tp, again, storage_fault)
        elif self._logged.allow(f"{tp}: {replica.failure}"):
            unforeseen = not isinstance(error, ForebayError)
            log.error("%s could not be applied; %s: %s", tp, again, error, exc_info=unforeseen and error)
        self._consumer.unassign(tp)
        self._suspend(replica)
        # A store that is broken may not say its offset either.
        with contextlib.suppress(Exception):
            observe_end(replica, end)

    def note_current(self) -> float:
        """Mark replicas whose logs have nothing new as current; return the delay in ms until the next round."""
        took_s = -time.thread_time()
        sent_boot_ms, current = self._consumer.current()
        for number, tp in enumerate(current, 1):
            if number % _NOTED_AT_ONCE == 0:
                time.sleep(_READERS_TURN_S)
            replica = self._replicas.get(tp)
            if replica is None or replica.ends.newest is None:
                continue
            end = EndOffset(replica.ends.newest.offset, sent_boot_ms)
            replica.ends.observe(end)
            replica.view = replica.view.at(replica.view.progress.observed(replica.ends))
            if replica.is_checkpoint_due(sent_boot_ms):
                replica.last_checkpoint_boot_ms = sent_boot_ms
                try:
                    checkpoint_caught_up(replica)
                except Exception as error:
                    self._give_up_for_now(replica, error, end)
        took_s += time.thread_time()
        pause_ms = max(_POLL_INTERVAL_MS, min(_PAUSE_BY_NOTING * took_s * 1000, _LONGEST_PAUSE_MS))
        self._current_due_boot_ms = boot_ms() + pause_ms
        return pause_ms

    def _keep_house(self) -> None:
        """Follow again replicas that failed a while ago, from their committed offset, and run housekeeping."""
        now = boot_ms()
        if now - self._housekept_boot_ms < _HOUSEKEEPING_MS:
            return
        self._housekept_boot_ms = now
        self._note_read_failures()
        for replica in self._replicas.values():
            if replica.phase is ReplicaPhase.SUSPENDED and replica.retry_boot_ms <= now:
                self._follow_again(replica)
        try:
            self._housekeeping()
        except Exception:
            log.exception("housekeeping failed; it will be retried")

    def _note_read_failures(self) -> None:
        """Publish why logs cannot be read, and log each reason once, with how many replicas it concerns."""
        failures = self._consumer.failures()
        notices = self._consumer.notices({replica.spec.topic: replica.spec for replica in self._replicas.values()})
        begun: dict[str, list[TopicPartition]] = {}
        for tp, replica in self._replicas.items():
            reason = failures[tp].reason if tp in failures else None
            if reason is not None and reason != replica.read_failure:
                begun.setdefault(reason, []).append(tp)
            elif reason is None and replica.read_failure is not None:
                log.info("%s can be read again", tp)
            replica.log_notices = notices.get(tp, {})
            if reason is not None or replica.read_failure is not None:
                replica.note_read_failure(reason, boot_ms())
        for number, (reason, tps) in enumerate(begun.items()):
            if number == _REASONS_AT_ONCE:
                log.error("%d more reasons are in the failures of /v1/status", len(begun) - number)
                break
            if self._logged.allow(reason):
                others = f" and {len(tps) - 1} more" if len(tps) > 1 else ""
                log.error("not applied are %s%s: %s", tps[0], others, reason)

    def _follow_all_again(self) -> None:
        """What was polled may not all have been applied: continue where the stores are."""
        for replica in self._replicas.values():
            if replica.phase is ReplicaPhase.FOLLOWING:
                self._follow_again(replica)

    def _follow_again(self, replica: Replica) -> None:
        tp = replica.topic_partition
        try:
            committed = replica.view.store.committed_offset(tp) or CommittedOffset(0)
        except Exception as error:
            replica.failure = str(error) or repr(error)
            self._suspend(replica)
        else:
            if committed.position != replica.view.recent_changes.end:
                # What the disk had refused was written after all, and nobody was told of its keys.
                self._resume(replica, committed)
            self._assign(replica, committed)

    def _resume(self, replica: Replica, committed: CommittedOffset) -> None:
        """Publish how far a store is; that may be an end of its log, which others wait for."""
        with self._restored_reported(replica):
            resume(replica, committed)

    def _suspend(self, replica: Replica) -> None:
        replica.retry_boot_ms = boot_ms() + _RETRY_MS
        replica.enter(ReplicaPhase.SUSPENDED)

    def _assign(self, replica: Replica, committed: CommittedOffset) -> None:
        replica.enter(ReplicaPhase.FOLLOWING)
        tp = replica.topic_partition
        try:
            self._consumer.assign(tp, committed.position, committed.proof)
        except Exception as error:
            replica.failure = str(error) or repr(error)
            if self._logged.allow(f"{tp}: {error}"):
                log.error("%s cannot be read; retrying every %.0f s: %s", tp, _RETRY_MS / 1000, error)
            self._suspend(replica)
