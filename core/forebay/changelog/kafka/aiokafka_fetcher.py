"""Fetches one partition at a time for a replay, by ``aiokafka``.

Its compiled parser makes records of a batch in a third of the processor time that librdkafka and the Python
objects of its messages take. The consumer of ``aiokafka`` would lose that again, since it copies each record into
a larger object. So this sends fetch requests by itself, and reads the answers as a read-committed consumer has to
(KIP-98).

The only module that uses parts of ``aiokafka`` that it exports but does not document; tests fail if a version no
longer has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition as KafkaTopicPartition

from forebay.changelog.base import Record
from forebay.changelog.kafka.fetcher import Fetched
from forebay.changelog.kafka.records import record_with_headers
from forebay.changelog.kafka.url import KafkaUrl
from forebay.task_ids import TopicPartition

_FETCH_BYTES = 4 << 20
_FETCH_WAIT_MS = 10
"""At the log's end. Until it is over, transaction markers there count as lag, and a replay is not at its end."""
_REQUEST_TIMEOUT_MS = 6_000
"""A frozen leader answers nothing. Nor is an answer read while its reader is busy, so this may end a request that
is well, too: it is sent again."""
_RETRY_AFTER_S = 0.1
_CLOSING_S = 1.0
_READ_COMMITTED = 1
_CHANGED_ITS_LAYOUT = 11
"""The version of the protocol since which an answer names a preferred replica before its records."""
_FAILURES = (KafkaError, OSError, asyncio.TimeoutError)

# Its errors are this module's to report.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class AiokafkaFetcher:
    """A ``Fetcher`` of a single partition at a time, which runs only while it is called."""

    def __init__(self, url: KafkaUrl) -> None:
        self._connection = url.aiokafka()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._client: AIOKafkaClient | None = None
        self._partition: TopicPartition | None = None
        self._request: asyncio.Task[Response] | None = None
        self._response: Response | None = None
        self._failure: Fetched | None = None
        self._offset = 0
        """The offset that was last asked for."""
        self._high_watermark = 0

    def start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Fetch a partition from this offset on; raises ``ValueError`` while another is being fetched."""
        if self._partition is not None:
            raise ValueError(f"{self._partition} is still being replayed: {topic_partition} has to wait")
        self._partition, self._high_watermark = topic_partition, 0
        self._request = self._loop.create_task(self._fetch(topic_partition, offset))

    def stop(self, topic_partition: TopicPartition) -> None:
        """Stop fetching; what was fetched and not taken is dropped."""
        if topic_partition == self._partition:
            self._partition = self._response = self._failure = None
            self._cancel_request()

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to take, or after the time-out."""
        if self._response is not None or self._failure is not None:
            return
        if self._request is None:
            self._run(asyncio.sleep(timeout_s))
            return
        self._run(asyncio.wait({self._request}, timeout=timeout_s))
        if self._request.done():
            self._receive(self._request)

    def take(self, most_records: int) -> dict[TopicPartition, Fetched]:
        """What is there; see ``Fetcher``. Raises aiokafka's ``KafkaError`` if it cannot be understood."""
        if self._partition is None:
            return {}
        self.wait(0)
        tp, response, failure = self._partition, self._response, self._failure
        if failure is not None:
            self._failure = None
            return {tp: failure}
        if response is None:
            return {}
        records = response.take(most_records)
        end = None
        if response.exhausted:
            self._response = None
            if response.position >= response.last_stable_offset:
                end = response.position
        return {tp: Fetched(records, response.position, end, response.newest_epoch_ms)}

    def end_at_last_response(self, topic_partition: TopicPartition) -> int:
        """The high watermark of the newest response, 0 if there was none."""
        return self._high_watermark if topic_partition == self._partition else 0

    def close(self, *, wait: bool = True) -> None:
        """Close the connections, which takes a second at most."""
        self._cancel_request()
        self._run(self._disconnect())
        self._runner.close()

    def _receive(self, request: asyncio.Task[Response]) -> None:
        assert self._partition is not None
        self._request = None
        try:
            self._response = response = request.result()
        except _FAILURES as error:
            self._fail(error, self._partition, self._offset)
            return
        self._high_watermark = response.high_watermark
        self._request = self._loop.create_task(self._fetch(self._partition, response.next_offset))
        # The broker works on it while these records are folded.
        self._run(asyncio.sleep(0))

    def _fail(self, error: BaseException, tp: TopicPartition, offset: int) -> None:
        if isinstance(error, OffsetOutOfRangeError):
            self._failure = Fetched([], lost=True)
            return
        self._failure = Fetched(
            [], error=str(error) or repr(error), lasting=isinstance(error, TopicAuthorizationFailedError)
        )
        self._request = self._loop.create_task(self._fetch_anew(tp, offset))

    def _cancel_request(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.cancel()
            self._run(asyncio.wait({request}))

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._loop.run_until_complete(coroutine)

    async def _fetch_anew(self, tp: TopicPartition, offset: int) -> Response:
        """Fetch over a new connection to whoever leads the partition now."""
        await asyncio.sleep(_RETRY_AFTER_S)
        await self._disconnect()
        return await self._fetch(tp, offset)

    async def _fetch(self, tp: TopicPartition, offset: int) -> Response:
        self._offset = offset
        client = await self._connected(tp.topic)
        leader = client.cluster.leader_for_partition(KafkaTopicPartition(*tp))
        if leader is None or leader < 0:
            raise LeaderNotAvailableError(f"{tp} has no leader")
        wanted = [(tp.topic, [(tp.partition, offset, _FETCH_BYTES)])]
        answer = await client.send(leader, FetchRequest(_FETCH_WAIT_MS, 1, _FETCH_BYTES, _READ_COMMITTED, wanted))
        ((_, (partition,)),) = answer.topics
        error = for_code(partition[1])
        if error.errno:
            raise error(f"{tp} at offset {offset}")
        return Response(offset, partition, names_replica=answer.API_VERSION >= _CHANGED_ITS_LAYOUT)

    async def _connected(self, topic: str) -> AIOKafkaClient:
        if self._client is None:
            client = AIOKafkaClient(request_timeout_ms=_REQUEST_TIMEOUT_MS, **self._connection)
            try:
                await client.bootstrap()
            except BaseException:
                await client.close()
                raise
            self._client = client
        await self._client.add_topic(topic)
        return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # With TLS, a frozen broker would hold this up.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(client.close(), _CLOSING_S)


class Response:
    """The answer to one request: record batches, given out bit by bit."""

    def __init__(self, offset: int, partition: tuple[Any, ...], *, names_replica: bool) -> None:
        self.high_watermark: int = partition[2]
        self.last_stable_offset: int = partition[3]
        self.position = offset
        """Next offset to take."""
        self.newest_epoch_ms = 0
        aborted = partition[-3 if names_replica else -2] or ()
        self._aborted = deque(sorted(aborted, key=lambda transaction: transaction[1]))
        """Producer and first offset of aborted transactions that begin in batches still to be read."""
        self._aborting: set[int] = set()
        """Producers of batches that are aborted, until their marker."""
        self._batches = deque(_batches(partition[-1] or b""))
        self._rest: list[Record] = []
        """Records of the last batch that were not taken yet."""
        self._read_to = offset
        """Next offset after that batch."""
        self._read_to_epoch_ms = 0
        """The largest timestamp in the last batch with records."""
        self.next_offset: int = self._batches[-1].next_offset if self._batches else offset
        """Next offset to fetch."""

    @property
    def exhausted(self) -> bool:
        """Whether everything was taken."""
        return not self._batches and not self._rest

    def take(self, most_records: int) -> list[Record]:
        """The next records; raises ``CorruptRecordException`` and ``UnsupportedCodecError``."""
        records = self._rest
        while self._batches and len(records) < most_records:
            batch = self._batches.popleft()
            if not batch.validate_crc():
                if records:
                    # What came before it is as it was written.
                    self._batches.appendleft(batch)
                    break
                raise CorruptRecordException(f"the batch at offset {self.position} has a wrong checksum")
            if self._is_read(batch):
                records += self._records(batch)
                self._read_to_epoch_ms = getattr(batch, "max_timestamp", 0)
            self._read_to = batch.next_offset
        records, self._rest = records[:most_records], records[most_records:]
        if self._rest:
            self.position = records[-1][0] + 1
        else:
            self.position, self.newest_epoch_ms = max(self.position, self._read_to), self._read_to_epoch_ms
        return records

    def _is_read(self, batch: Any) -> bool:
        """Whether a batch holds records, committed ones."""
        if batch.is_transactional:
            while self._aborted and self._aborted[0][1] < batch.next_offset:
                self._aborting.add(self._aborted.popleft()[0])
            if batch.is_control_batch:
                if _aborts(batch):
                    self._aborting.discard(batch.producer_id)
            elif batch.producer_id in self._aborting:
                return False
        return not batch.is_control_batch

    def _records(self, batch: Any) -> list[Record]:
        records = [
            (r.offset, r.key, r.value, r.timestamp, False)
            if not r.headers
            else record_with_headers(r.offset, r.key, r.value, r.timestamp, r.headers)
            for r in batch
        ]
        if records and records[0][3] is None:
            # Of the oldest format, which has no timestamps.
            records = [(offset, key, value, 0, beat) for offset, key, value, _, beat in records]
        # The broker sends whole batches: the first one may begin before the offset that was asked for.
        if records and records[0][0] < self.position:
            return [record for record in records if record[0] >= self.position]
        return records


def _batches(data: bytes) -> Iterator[Any]:
    """All whole batches; the last may have been cut off."""
    batches = MemoryRecords(data)
    while batches.has_next():
        yield batches.next_batch()


def _aborts(marker: Any) -> bool:
    """Whether a control batch ends a transaction by aborting it; the cleaner may have emptied it."""
    return any(ControlRecord.parse(record.key) == ABORT_MARKER for record in marker)
