"""One client's stream of a store's changes: the state page by page, then what changes, then how far behind it is.

It holds no values but those in hand: what is next is read once the client has received them. So a slow client gets
fewer values, and never a longer queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Hashable

from fastapi import Request
from fastapi.responses import Response

from forebay.clock import boot_ms
from forebay.errors import LagExceedsTolerance, NotHostedHere, Problem
from forebay.wire.answers import json_body, lag_json, problem_answer
from forebay.wire.key_changes import KEEP_ALIVE_MS, is_transient
from forebay.wire.parameters import ReadParameters, split_query
from forebay.wire.server_sent_events import EncodedEvents, Event
from forebay_web.application import respond
from forebay_web.event_streams import Events, EventStreams
from forebay_web.follower_wakeups import wait_until
from forebay_web.limits import Held, Limits
from forebay_web.routes import Endpoint
from forebay_web.store_changes.cursors import ChangesCursor, decode_id, encode_id
from forebay_web.store_changes.feed import PAGE_BYTES, ChangesFeed, ChangesFeeds, PartitionFeed, Source
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.selection import KeySelection

OF_THE_CLIENT = frozenset({"lag_interval_ms", "timeout_ms", "wait_ms"})
"""Parameters in which followers of the same may differ."""
_PARTITION_BYTES = 400
"""What a partition takes of a client's stream."""
_BETWEEN_IDS_MS = 1_000.0
_LARGE_ID_CHARACTERS = 256
"""Longer ones are not sent with every event."""
_FRESH_MS = 2_500.0
"""How old what is known of a replica may be that a lag event speaks of."""
_OVERDUE_PAUSE_MS = 1_000.0
"""How often it is looked whether a lag event that is overdue can be sent."""
_BETWEEN_CHANGES_MS = 50.0
_MIN_PAUSE_MS, _MAX_PAUSE_MS = 20.0, 1_000.0


class FollowedPartition:
    """One partition as a client has it."""

    __slots__ = ("changes_due_boot_ms", "cursor", "due_boot_ms", "feed", "pause_ms", "problem")

    def __init__(self, cursor: ChangesCursor | None) -> None:
        self.cursor = cursor
        self.due_boot_ms = 0.0
        """When to read it next."""
        self.changes_due_boot_ms = 0.0
        """When to read its changes again while its state is sent."""
        self.pause_ms = _MIN_PAUSE_MS
        self.problem: Problem | None = None
        self.feed: PartitionFeed | None = None
        """The one that it continues, once its state was sent."""

    def put_off(self, problem: Problem) -> None:
        """Read it again later, since there is a problem."""
        self.problem = problem
        self.due_boot_ms = boot_ms() + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, _MAX_PAUSE_MS)

    def on_read(self, page: ChangesPage) -> None:
        """Read it after the others that are due, and its changes no more often than they may be sent."""
        self.problem, self.pause_ms = None, _MIN_PAUSE_MS
        pauses = page.cursor.whole and page.more
        self.due_boot_ms = boot_ms() + (_BETWEEN_CHANGES_MS if pauses else 0.0)

    def is_state_next(self) -> bool:
        """Whether the next page is of the state: changes of what was sent of it come in between."""
        now = boot_ms()
        if self.cursor is None or self.cursor.whole:
            return False
        if self.cursor.after and now >= self.changes_due_boot_ms:
            self.changes_due_boot_ms = now + _BETWEEN_CHANGES_MS
            return False
        return True


class StoreFollower:
    """One client's stream; ``cursors`` are those of the id that it resumes from, by partition.

    It is counted in ``memory``. ``timeout_ms`` is how often it says that partitions cannot be read.
    """

    def __init__(
        self,
        source: Source,
        cursors: dict[int, ChangesCursor],
        memory: Held,
        lag_interval_ms: int,
        timeout_ms: int,
    ) -> None:
        self._source = source
        self._memory = memory
        self._lag_interval_ms = lag_interval_ms
        self._timeout_ms = timeout_ms
        self._partitions = {number: FollowedPartition(cursors.get(number)) for number in source.partitions}
        self._behind = set(self._partitions)
        """The partitions that this client reads by itself, since it has not what the feed has."""
        self._reading: tuple[int, asyncio.Task[ChangesPage]] | None = None
        """The partition that is being read."""
        self._to_reset = [number for number, part in self._partitions.items() if part.cursor is None]
        self._woken = asyncio.Event()
        self._ready: list[bytes] = []
        """Encoded events, each without its id and its end."""
        self._before: dict[int, ChangesCursor] = {}
        """Where the client is until it has received all of them, of the partitions that they are of."""
        self._version = 0
        """The feed's up to which this client has all, but for the partitions that it reads by itself."""
        now = boot_ms()
        self._sent_boot_ms = self._lag_due_boot_ms = now
        self._problem_due_boot_ms: float | None = now + timeout_ms
        """None while there is nothing that may fail."""
        self._id_due_boot_ms = 0.0
        self._ends = False

    async def events(self, feeds: ChangesFeeds, query: Hashable) -> Events:
        """The events, until a worker lost a partition; raises ``Problem`` if the request is at fault.

        ``query`` equals that of all who follow the same with the same bounds.
        """
        with self._memory, contextlib.closing(self), feeds.joined(query, self._source, self._woken.set) as feed:
            self._memory.take(_PARTITION_BYTES * len(self._partitions))
            while not self._ends:
                self._woken.clear()
                self._before.clear()
                self._take_read(feed)
                self._start_read()
                self._take_news(feed)
                events = self._sent() if self._ready else self._about_the_replicas(feed)
                if events is not None or boot_ms() - self._sent_boot_ms >= KEEP_ALIVE_MS:
                    self._sent_boot_ms = boot_ms()
                    yield events
                else:
                    await wait_until(self._woken, self._due_boot_ms())

    def _start_read(self) -> None:
        """Read a page of the partition that is due for longest, if one is and no other is being read."""
        if self._reading is not None or not self._behind:
            return
        number = min(self._behind, key=lambda one: self._partitions[one].due_boot_ms)
        partition = self._partitions[number]
        if partition.due_boot_ms > boot_ms():
            return
        try:
            self._memory.take(PAGE_BYTES)
        except Problem as problem:
            partition.put_off(problem)
            return
        page = self._source.page(number, partition.cursor, state=partition.is_state_next())
        self._reading = number, asyncio.ensure_future(page)
        self._reading[1].add_done_callback(self._on_read)

    def _on_read(self, reading: asyncio.Task[ChangesPage]) -> None:
        if not reading.cancelled():
            # Nobody may be left to take it.
            reading.exception()
        self._woken.set()

    def _take_read(self, feed: ChangesFeed) -> None:
        """Take over the page that was read, if one was; raises ``Problem`` if the request is at fault."""
        if self._reading is None or not self._reading[1].done():
            return
        (number, reading), self._reading = self._reading, None
        partition = self._partitions[number]
        self._memory.adjust(-PAGE_BYTES)
        try:
            page = reading.result()
            if not self._is_within_bounds(page):
                # The client took long to receive what was before it: it is read again.
                left = "A page had left its bounds before the client took it."
                raise LagExceedsTolerance(left, store=self._source.selection.spec.name)
        except Problem as problem:
            if not is_transient(problem):
                raise
            partition.put_off(problem)
        else:
            partition.on_read(page)
            self._take(feed, partition, page)

    def close(self) -> None:
        if self._reading is not None:
            self._reading[1].cancel()

    def _take(self, feed: ChangesFeed, partition: FollowedPartition, page: ChangesPage) -> None:
        """Take over a page that this client read by itself."""
        if page.reset and partition.cursor is not None:
            self._to_reset.append(page.partition)
        self._send_resets()
        self._send(partition, page)
        if page.cursor.whole and not page.more:
            self._behind.remove(page.partition)
            partition.feed = feed.follow(page.partition, page)
            # The others may be further already.
            self._catch_up(feed, page.partition)

    def _take_news(self, feed: ChangesFeed) -> None:
        """Take over what all who follow the same get."""
        if feed.version == self._version:
            return
        for number in self._partitions.keys() - self._behind:
            fed = feed.partitions.get(number)
            if fed is None or fed is not self._partitions[number].feed:
                # It began anew.
                self._fall_behind(number)
            elif fed.version > self._version:
                self._catch_up(feed, number)
        self._version = feed.version

    def _catch_up(self, feed: ChangesFeed, number: int) -> None:
        """Send a partition's newest page if this client has missed just that; it reads by itself otherwise."""
        partition = self._partitions[number]
        assert partition.cursor is not None
        try:
            page = feed.missed_by(number, partition.cursor)
        except LookupError:
            self._fall_behind(number)
            return
        if page is not None:
            if self._is_within_bounds(page):
                self._send(partition, page)
            else:
                self._fall_behind(number)

    def _fall_behind(self, number: int) -> None:
        self._behind.add(number)
        self._partitions[number].due_boot_ms = 0.0

    def _is_within_bounds(self, page: ChangesPage) -> bool:
        return self._source.tolerance().met_by(page.lag_at(boot_ms()))

    def _send_resets(self) -> None:
        if not self._to_reset:
            return
        numbers, self._to_reset = sorted(self._to_reset), []
        for number in numbers:
            self._partitions[number].cursor = None
        document = {"store": self._source.selection.spec.name, "partitions": numbers}
        # With an older id, the client would be taken to have what it has just forgotten.
        self._id_due_boot_ms = 0.0
        self._ready.append(Event("reset", json_body(document)).fields())

    def _send(self, partition: FollowedPartition, page: ChangesPage) -> None:
        cursor = partition.cursor
        upper = page.cursor.upper if cursor is None else max(page.cursor.upper, cursor.upper)
        known = self._before.get(page.partition, cursor)
        before = page.cursor._replace(after=b"") if known is None else known
        self._before[page.partition] = before._replace(upper=upper)
        partition.cursor = page.cursor._replace(upper=upper)
        self._ready += page.events(self._source.selection, boot_ms())

    def _sent(self) -> EncodedEvents:
        """All that is ready, with an id if one is due.

        Of several events the first has one too. A client that receives no other then gets the rest again, and of
        what it has forgotten all, from no replica that is behind what it received.
        """
        if boot_ms() >= self._id_due_boot_ms:
            known = self._partitions.items()
            cursors = {number: part.cursor for number, part in known if part.cursor is not None}
            if len(self._ready) > 1:
                self._ready[0] += self._id_line(cursors | self._before)
            self._ready[-1] += self._id_line(cursors)
        body = b"\n".join(self._ready) + b"\n"
        self._ready = []
        return EncodedEvents(body)

    def _id_line(self, cursors: dict[int, ChangesCursor]) -> bytes:
        """The id that tells how far the client is."""
        selection = self._source.selection
        identity = encode_id(selection.digest, selection.partitions, cursors)
        if len(identity) > _LARGE_ID_CHARACTERS:
            self._id_due_boot_ms = boot_ms() + _BETWEEN_IDS_MS
        return b"id: %b\n" % identity.encode()

    def _about_the_replicas(self, feed: ChangesFeed) -> EncodedEvents | Event | None:
        """A problem or a lag event, if one is due."""
        now = boot_ms()
        failing = self._failing(feed)
        if failing:
            if self._problem_due_boot_ms is None:
                self._problem_due_boot_ms = now + self._timeout_ms
            return self._problem_event(failing, now) if now >= self._problem_due_boot_ms else None
        self._problem_due_boot_ms = now + self._timeout_ms if self._behind else None
        if now < self._lag_due_boot_ms or self._behind or not self._is_fresh(feed, now):
            return None
        lag = feed.lag_at(now)
        # If it is beyond the bounds, the next poll shows whether that is so.
        return self._lag_event(feed, lag_json(lag), now) if self._source.tolerance().met_by(lag) else None

    def _lag_event(self, feed: ChangesFeed, lag: bytes, now: float) -> EncodedEvents:
        self._lag_due_boot_ms = now + self._lag_interval_ms
        for number, partition in self._partitions.items():
            assert partition.cursor is not None
            # Nothing has changed since, or it would have been sent.
            partition.cursor = _later(partition.cursor, feed.partitions[number].page.cursor)
        self._id_due_boot_ms = 0.0
        store = json.dumps(self._source.selection.spec.name).encode()
        self._ready.append(Event("lag", b'{"store":%b,"lag":%b}' % (store, lag)).fields())
        return self._sent()

    def _failing(self, feed: ChangesFeed) -> dict[int, Problem]:
        """Why partitions cannot be read at the moment."""
        shared = {number: fed.problem for number, fed in feed.partitions.items()}
        alone = {number: self._partitions[number].problem for number in self._behind}
        return {number: problem for number, problem in (shared | alone).items() if problem is not None}

    def _problem_event(self, failing: dict[int, Problem], now: float) -> Event:
        self._problem_due_boot_ms = now + self._timeout_ms
        # The client of a worker finds the partition elsewhere.
        self._ends = any(isinstance(problem, NotHostedHere) for problem in failing.values())
        _, problem = min(failing.items())
        return Event("problem", json_body({**problem.document(), "partitions": sorted(failing)}))

    def _is_fresh(self, feed: ChangesFeed, now: float) -> bool:
        fed = feed.partitions.values()
        return len(fed) == len(self._partitions) and all(now - one.page.as_of_boot_ms <= _FRESH_MS for one in fed)

    def _due_boot_ms(self) -> float:
        """When there may be something to send or to read, if nothing changes."""
        now = boot_ms()
        about = [one for one in (self._lag_due_boot_ms, self._problem_due_boot_ms) if one is not None]
        due = [one if one > now else now + _OVERDUE_PAUSE_MS for one in about]
        # Only one is read at once.
        reads = () if self._reading else (self._partitions[number].due_boot_ms for number in self._behind)
        return min(self._sent_boot_ms + KEEP_ALIVE_MS, *due, *reads)


def _later(cursor: ChangesCursor, polled: ChangesCursor) -> ChangesCursor:
    """Where a client is that has all of a polled cursor."""
    return polled._replace(upper=max(cursor.upper, polled.upper)) if polled.reaches(cursor) else cursor


def stream_endpoint(
    source_of: Callable[[Request], tuple[Source, ReadParameters, int]],
    count: Callable[[int, str, str], None],
    limits: Limits,
    streams: EventStreams,
) -> Endpoint:
    """The endpoint of streams of many keys.

    ``source_of`` gives what a request follows, with its parameters and its time-out in milliseconds, or raises
    ``Problem``. ``count`` is called with an answer's status, the store, and the name of the problem if it is one.
    """
    feeds = ChangesFeeds()

    async def endpoint(request: Request) -> Response:
        store, name = request.path_params["store"], ""
        try:
            source, parameters, timeout_ms = source_of(request)
            peer = limits.peers.of(request.scope)
            cursors = _resumed(request.headers.get("last-event-id"), source.selection)
            memory = limits.memory_of(peer)
            follower = StoreFollower(source, cursors, memory, parameters.lag_interval_ms, timeout_ms)
            events = follower.events(feeds, _query(request, source))
            response: Response = await streams.open(events, request.receive, peer)
        except Problem as problem:
            name = problem.name
            response = respond(problem_answer(problem))
        count(response.status_code, store, name)
        return response

    return endpoint


def _query(request: Request, source: Source) -> object:
    """What equals that of all who follow the same, with the same bounds."""
    query = split_query(request.scope["query_string"])
    selected = frozenset(item.received for item in query if item.name not in OF_THE_CLIENT)
    return source.selection.spec.name, tuple(source.partitions), selected


def _resumed(last_event_id: str | None, selection: KeySelection) -> dict[int, ChangesCursor]:
    """The cursors in an id; none in one that is of no event, after which every partition is reset."""
    try:
        return decode_id(last_event_id or "", selection.digest, selection.partitions)
    except ValueError:
        return {}
