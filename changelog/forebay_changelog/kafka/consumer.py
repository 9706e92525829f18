"""Reads partitions of Kafka topics, and keeps checking their ends and topic ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec

from forebay.clock import boot_ms
from forebay.lag import EndOffset
from forebay.log_epochs import OffsetAndEpoch
from forebay.store_spec import StoreSpec
from forebay.task_ids import TopicPartition
from forebay_changelog.base import Batch, ReadFailure, Wake
from forebay_changelog.kafka.admin_polls import AdminPoll, AdminPolls, ask_offsets
from forebay_changelog.kafka.fetcher import Fetched, Fetcher
from forebay_changelog.kafka.topic_states import TopicStates
from forebay_changelog.kafka.topics import KafkaTopics
from forebay_changelog.kafka.transient_errors import passes

log = logging.getLogger(__name__)

_END_INTERVAL_MS = 100.0
_ENDS_AT_ONCE = 250
"""How many known ends are refreshed at a time: each costs Python 20 us, so this is a twentieth of a core."""
_BEGINNING_INTERVAL_MS = 10_000.0
_WRITTEN_TO_FOR_MS = 10_000.0
"""For this long after something was seen beyond the position, both ends of a partition are requested."""
_RENEWAL_INTERVAL_MS = 1_000.0
_END_UNKNOWN_FOR_MS = 10_000.0
"""A partition whose end was not learnt for this long cannot be read: elections and restarts take less."""
_MAX_AT_ONCE = 2_000
"""Records of all partitions in one poll, unless a single partition may have more."""
_NOTHING = Fetched([])
_LEVELS = (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
"""Their ends are the high watermark and the last stable offset."""


@dataclass
class _AssignedPartition:
    position: int
    since_boot_ms: float
    """When the position was reached: only an end observed after that can contradict it."""
    assigned_boot_ms: float
    proof: OffsetAndEpoch | None = None
    """Where the last record that was read ends, and its epoch; None if no record was, or it had none."""
    is_proven: bool = True
    """Whether the log is known to have that record: until then nothing counts that it says."""
    end: EndOffset | None = None
    stable: EndOffset | None = None
    """The last stable offset as last answered."""
    written: EndOffset | None = None
    """The high watermark as last answered."""
    beyond_boot_ms: float = float("-inf")
    """When the high watermark was last seen beyond the position."""
    beginning: int | None = None
    newest_epoch_ms: int = 0
    """The largest record timestamp read: compaction never touched what follows a young record."""
    leader_epoch: int = -1
    """The newest of a leader that is known; one that it has replaced may still answer with its old end."""
    lost: bool = False
    """The position is not in the log."""
    truncated: bool = False
    """It may be, but what was read before it no longer is."""
    refusal: str | None = None
    """Why the partition is not fetched, and will not be by itself."""
    at_end: bool = False
    """Whether the last batch reached the end that was last observed."""

    def observed(self) -> EndOffset | None:
        """The end by the newest answers, None if they do not tell."""
        written, stable = self.written, self.stable
        if written is None:
            return None
        if written.offset == self.position:
            return written
        if stable is None or stable.sent_boot_ms != written.sent_boot_ms:
            return None
        return stable._replace(high_watermark=max(stable.offset, written.offset))

    def forget_ends(self) -> None:
        """Expect the log anywhere."""
        self.end = self.stable = self.written = self.beginning = None
        self.leader_epoch = -1

    def is_of_leader(self, found: Any) -> bool:
        """Whether an answer about offsets is not of a leader that was replaced."""
        epoch: int = -1 if found.leader_epoch is None else found.leader_epoch
        is_older = 0 <= epoch < self.leader_epoch
        self.leader_epoch = max(self.leader_epoch, epoch)
        return not is_older


class KafkaConsumer:
    """The ``Consumer`` of a Kafka changelog; ``new_fetcher`` makes what fetches its partitions."""

    def __init__(self, topics: KafkaTopics, new_fetcher: Callable[[], Fetcher]) -> None:
        self._topics = topics
        self._new_fetcher = new_fetcher
        self._fetcher = new_fetcher()
        self._renewal_due = False
        self._renewed_boot_ms = 0.0
        self._assigned: dict[TopicPartition, _AssignedPartition] = {}
        self._not_fetched: set[TopicPartition] = set()
        self._news: set[TopicPartition] = set()
        """Those with newer information than in ``_current``."""
        self._current: list[TopicPartition] = []
        """Those whose end was unchanged, and had been reached, at the last request."""
        self._current_boot_ms = 0.0
        self._to_ask: list[TopicPartition] = []
        self._ends = AdminPoll(_END_INTERVAL_MS, lambda admin: self._ask_ends(admin, self._known_in_turn()))
        # Asked for by itself: while one cannot be learnt, such as without a leader, all others are to stay known.
        self._first_ends = AdminPoll(_END_INTERVAL_MS, lambda admin: self._ask_ends(admin, self._unknown()))
        self._beginnings = AdminPoll(
            _BEGINNING_INTERVAL_MS, lambda admin: ask_offsets(admin, list(self._assigned), OffsetSpec.earliest())
        )
        self._states = TopicStates(lambda: sorted({tp.topic for tp in self._assigned}))
        of_partitions = (self._ends, self._first_ends, self._beginnings)
        self._questions = AdminPolls(topics, *of_partitions, self._states.describing, self._states.configuring)

    def _renew_fetcher(self) -> None:
        """Start again with a client that has never seen the replaced topic.

        librdkafka ignores metadata with a leader epoch below one that it saw before, and a recreated topic starts
        at epoch 0: the old client would wait for ever.
        """
        if boot_ms() < self._renewed_boot_ms + _RENEWAL_INTERVAL_MS:
            return
        self._renewed_boot_ms = boot_ms()
        try:
            new = self._new_fetcher()
        except Exception as error:
            # The old one is still of use for all other topics.
            log.error("a topic was recreated, but the client needed to read it cannot be started: %s", error)
            return
        old, self._fetcher, self._renewal_due = self._fetcher, new, False
        self._not_fetched.update(self._assigned)
        old.close(wait=False)

    def assign(self, topic_partition: TopicPartition, position: int, proof: OffsetAndEpoch | None = None) -> None:
        self.unassign(topic_partition)
        now = boot_ms()
        self._assigned[topic_partition] = _AssignedPartition(position, now, now, proof, proof is None)
        self._not_fetched.add(topic_partition)
        self._first_ends.at_once = self._beginnings.at_once = True
        if self._states.get(topic_partition.topic) is None:
            self._states.describing.at_once = self._states.configuring.at_once = True

    def unassign(self, topic_partition: TopicPartition) -> None:
        if self._assigned.pop(topic_partition, None) is None:
            return
        self._stop_fetching(topic_partition)
        self._not_fetched.discard(topic_partition)
        self._news.discard(topic_partition)
        for ends in (self._ends, self._first_ends):
            for level in _LEVELS:
                ends.errors.pop((topic_partition, level), None)

    def close(self) -> None:
        self._assigned.clear()
        self._fetcher.close()

    def wait(self, wake: Wake, timeout_s: float) -> None:
        """Return when something may be new, when ``wake`` is set, or after the time-out at the latest."""
        if not wake.is_set():
            self._fetcher.wait(timeout_s)

    def poll(self, max_records: int) -> list[Batch]:
        """What is new, and the ends that were observed meanwhile.

        A fetcher cannot limit each partition, so the limits of all partitions together apply.
        """
        self._take_answers()
        self._fetch_more()
        if self._assigned:
            self._questions.send_due()
        of_all = min(max_records * max(1, len(self._assigned)), max(max_records, _MAX_AT_ONCE))
        fetched = self._fetcher.take(of_all)
        fetched_partitions = {tp for tp, part in fetched.items() if part.position or part.end is not None}
        for tp in fetched_partitions & self._assigned.keys():
            self._assigned[tp].refusal, self._assigned[tp].is_proven = None, True
        for tp, part in fetched.items():
            if tp in self._assigned and (part.lost or part.error is not None):
                self._take_failure(tp, part)
        changed = (fetched_partitions | self._news) & self._assigned.keys()
        self._news.clear()
        batches = (self._batch(tp, fetched.get(tp, _NOTHING)) for tp in sorted(changed))
        return [batch for batch in batches if batch is not None]

    def failures(self) -> dict[TopicPartition, ReadFailure]:
        """Why partitions cannot be read; elections, restarts of brokers and new topics are waited for."""
        now = boot_ms()
        found = {tp: self._failure(tp, assigned, now) for tp, assigned in self._assigned.items()}
        return {tp: failure for tp, failure in found.items() if failure is not None}

    def _failure(self, tp: TopicPartition, assigned: _AssignedPartition, now_boot_ms: float) -> ReadFailure | None:
        if assigned.refusal is not None:
            return ReadFailure(assigned.refusal, lasting=True)
        refusal = self._states.refusal(tp.topic, now_boot_ms)
        if refusal is not None:
            return ReadFailure(self._topics.unreadable(tp, refusal), lasting=not passes(refusal))
        known_boot_ms = assigned.assigned_boot_ms if assigned.end is None else assigned.end.sent_boot_ms
        if now_boot_ms - known_boot_ms < _END_UNKNOWN_FOR_MS:
            return None
        errors = (ends.errors.get((tp, level)) for ends in (self._ends, self._first_ends) for level in _LEVELS)
        error = next((error for error in errors if error is not None), None)
        if error is None:
            return ReadFailure(self._topics.silent(), lasting=False)
        return ReadFailure(self._topics.unreadable(tp, error), lasting=not passes(error))

    def notices(self, specs: Mapping[str, StoreSpec]) -> dict[TopicPartition, dict[str, str]]:
        """Topics whose policy is not suitable for their store; see ``Consumer``."""
        faults = {topic: self._states.unsuitable(spec) for topic, spec in specs.items()}
        found = {
            topic: {fault.kind: f"The topic {topic!r} {fault.text}."}
            for topic, fault in faults.items()
            if fault is not None
        }
        return {tp: found[tp.topic] for tp in self._assigned if tp.topic in found}

    def current(self) -> tuple[float, list[TopicPartition]]:
        """When ends were last requested, and the partitions whose last batch had reached their end."""
        current, self._current = self._current, []
        return self._current_boot_ms, [tp for tp in current if tp in self._assigned and tp not in self._news]

    def _take_failure(self, tp: TopicPartition, fetched: Fetched) -> None:
        self._states.describing.at_once = True
        if fetched.lost:
            # The next request for both ends will show on which side of the log it is.
            assigned = self._assigned[tp]
            self._stop_fetching(tp)
            assigned.lost, assigned.since_boot_ms = True, boot_ms()
            assigned.truncated |= fetched.truncated and assigned.position > 0
            assigned.forget_ends()
            self._first_ends.at_once = self._beginnings.at_once = True
        elif fetched.lasting:
            self._assigned[tp].refusal = f"{tp} cannot be read: {fetched.error}."
        else:
            log.debug("%s: %s", tp, fetched.error)

    def _batch(self, tp: TopicPartition, fetched: Fetched) -> Batch | None:
        assigned, state = self._assigned[tp], self._states.get(tp.topic)
        if assigned.end is None or assigned.beginning is None or state is None:
            return None
        if not (assigned.is_proven or assigned.lost):
            return None
        before = assigned.position
        records = fetched.records
        if records and records[0][0] < before:
            # After the proof there was nothing to read as far as the position, such as an aborted transaction.
            self._take_failure(tp, Fetched([], lost=True, truncated=True))
            return None
        after = max(before, fetched.position)
        gap = after - before != len(records) and not self._states.is_young(tp.topic, assigned.newest_epoch_ms)
        if after != before:
            assigned.position, assigned.since_boot_ms = after, boot_ms()
            assigned.newest_epoch_ms = max(assigned.newest_epoch_ms, fetched.newest_epoch_ms)
            assigned.leader_epoch = max(assigned.leader_epoch, *(start.epoch for start in fetched.epochs), -1)
        end = assigned.end
        if end.sent_boot_ms < assigned.since_boot_ms:
            end = end.at_least(after)
        if gap:
            end = end.at_least(self._fetcher.end_at_last_response(tp))
        floor = assigned.beginning if assigned.lost else 0
        # If nothing was read yet, nothing was missed: the log has only dropped its beginning meanwhile.
        if assigned.lost and not assigned.truncated and (before == 0 or floor <= before <= end.offset):
            assigned.lost = False
        assigned.at_end = after == end.offset and not assigned.lost
        batch = Batch(
            tp,
            records,
            after,
            gap,
            end,
            assigned.beginning,
            floor,
            state.identity,
            state.tombstone_life_ms,
            state.partitions,
            # The cleaner never passes the last stable offset, which is where a partition ends for a reader.
            end_reached=bool(fetched.end) and fetched.end == after,
            truncated=assigned.truncated,
            is_beginning_fixed=not state.deletes,
            epochs=fetched.epochs,
        )
        assigned.proof = batch.proof(assigned.proof)
        return batch

    def _take_answers(self) -> None:
        for ends in (self._ends, self._first_ends):
            for (tp, isolation_level), found in ends.answers():
                assigned = self._assigned.get(tp)
                if assigned is None or found.offset < 0 or not _counts(ends, assigned, assigned.end):
                    continue
                if assigned.is_of_leader(found):
                    answer = EndOffset(found.offset, ends.sent_boot_ms, epoch=found.leader_epoch)
                    if isolation_level is IsolationLevel.READ_COMMITTED:
                        assigned.stable = answer
                    else:
                        assigned.written = answer
                        if answer.offset != assigned.position:
                            assigned.beyond_boot_ms = answer.sent_boot_ms
                    end = assigned.observed()
                    if end is not None:
                        self._take_end(tp, assigned, end)
            # A topic that is being replaced has no end for a moment.
            if ends.failed and self._states.describing.sent_boot_ms < ends.sent_boot_ms:
                self._states.describing.at_once = True
        for tp, found in self._beginnings.answers():
            assigned = self._assigned.get(tp)
            if assigned is None:
                continue
            if found.offset < 0:
                # Of a partition that was just made; repeated soon, as after an error.
                self._beginnings.failed = True
            elif _counts(self._beginnings, assigned, assigned.beginning):
                assigned.beginning = found.offset
                self._news.add(tp)
        changed, replaced = self._states.take_answers()
        self._news.update(tp for tp in self._assigned if tp.topic in changed)
        self._renewal_due |= bool(replaced)
        for tp, assigned in self._assigned.items():
            if tp.topic in replaced:
                # A recreated topic begins with epoch 0, and its identity says that it is another log.
                assigned.leader_epoch, assigned.proof = -1, None
        if self._renewal_due:
            self._renew_fetcher()

    def _take_end(self, tp: TopicPartition, assigned: _AssignedPartition, end: EndOffset) -> None:
        known = assigned.end
        if known is not None and known.sent_boot_ms > end.sent_boot_ms:
            return
        if assigned.at_end and known is not None and known.offset == end.written_to == assigned.position:
            if self._current_boot_ms != end.sent_boot_ms:
                self._current, self._current_boot_ms = [], end.sent_boot_ms
            self._current.append(tp)
        else:
            self._news.add(tp)
        assigned.end = end

    def _fetch_more(self) -> None:
        for tp in list(self._not_fetched):
            assigned = self._assigned[tp]
            if (
                assigned.beginning is None
                or assigned.end is None
                or assigned.lost
                or self._states.get(tp.topic) is None
            ):
                continue
            proof, start = assigned.proof, assigned.position or assigned.beginning
            if proof is not None and proof.offset < assigned.beginning:
                # The log no longer has the record whose epoch could be compared. After it there were no others.
                proof, start = None, min(start, assigned.beginning)
            assigned.is_proven = proof is None
            self._fetcher.start(tp, start, proof)
            self._not_fetched.discard(tp)

    def _stop_fetching(self, tp: TopicPartition) -> None:
        if tp not in self._not_fetched:
            self._fetcher.stop(tp)
            self._not_fetched.add(tp)

    def _ask_ends(
        self, admin: AdminClient, topic_partitions: list[TopicPartition]
    ) -> dict[tuple[TopicPartition, IsolationLevel], Future[Any]]:
        """Request high watermarks, and last stable offsets where they may differ: each request costs time.

        Where a partition is read to its high watermark, no transaction is open.
        """
        assigned, beyond = self._assigned, boot_ms() - _WRITTEN_TO_FOR_MS
        both = [tp for tp in topic_partitions if assigned[tp].end is None or assigned[tp].beyond_boot_ms > beyond]
        return {
            (tp, isolation_level): future
            for isolation_level, some in zip(_LEVELS, (topic_partitions, both), strict=True)
            for tp, future in ask_offsets(admin, some, OffsetSpec.latest(), isolation_level).items()
        }

    def _unknown(self) -> list[TopicPartition]:
        """Those whose end is not known."""
        return [tp for tp, assigned in self._assigned.items() if assigned.end is None]

    def _known_in_turn(self) -> list[TopicPartition]:
        """Some of those whose end is known, in turn."""
        self._to_ask = self._to_ask or [tp for tp, assigned in self._assigned.items() if assigned.end is not None]
        some, self._to_ask = self._to_ask[:_ENDS_AT_ONCE], self._to_ask[_ENDS_AT_ONCE:]
        return [tp for tp in some if tp in self._assigned]


def _counts(question: AdminPoll, assigned: _AssignedPartition, known: object) -> bool:
    """Whether an answer counts: the first does not if it was requested earlier, perhaps from a replaced topic."""
    return known is not None or question.sent_boot_ms >= assigned.since_boot_ms
