"""One client's stream of a store's changes: the state page by page, then what changes, then how far behind it is.

It holds no values but those in hand: what is next is read once the client has received them. So a slow client gets
fewer values, and never a longer queue.
"""

from __future__ import annotations

import asyncio
import json

from forebay.clock import boot_ms
from forebay.errors import LagExceedsTolerance, NotHostedHere, Problem
from forebay.wire.answers import lag_json
from forebay.wire.key_changes import KEEP_ALIVE_MS
from forebay.wire.server_sent_events import EncodedEvents, Event
from forebay_web.event_streams import Events
from forebay_web.follower_wakeups import Waker, paced_wakes
from forebay_web.limits import Held
from forebay_web.store_changes.cursors import ChangesCursor, encode_id
from forebay_web.store_changes.own_reads import PART_BYTES, OwnRead, OwnReads, Part
from forebay_web.store_changes.pages import ChangesPage
from forebay_web.store_changes.source import Source
from forebay_web.store_changes.tail import Tail

_BETWEEN_IDS_MS = 1_000.0
_LARGE_ID_CHARACTERS = 256
"""Longer ones are not sent with every event."""
_FRESH_MS = 2_500.0
"""How old what is known of a replica may be that a lag event speaks of."""
_OVERDUE_PAUSE_MS = 1_000.0
"""How often it is looked whether a lag event that is overdue can be sent."""


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
        self._parts = {partition: Part(cursors.get(partition)) for partition in source.partitions}
        self._woken = asyncio.Event()
        self._wakes = paced_wakes()
        self._own = OwnReads(source, self._parts, memory, self._woken.set)
        self._to_reset = [partition for partition, part in self._parts.items() if part.cursor is None]
        self._ready: list[bytes] = []
        """Encoded events, each without its id and its end."""
        self._before: dict[int, ChangesCursor] = {}
        """Where the client is until it has received all of them, of the partitions that they are of."""
        self._version = self._losses = 0
        now = boot_ms()
        self._sent_boot_ms = self._lag_due_boot_ms = now
        self._problem_due_boot_ms: float | None = now + timeout_ms
        """None while there is nothing that may fail."""
        self._id_due_boot_ms = 0.0
        self._ends = False

    @property
    def wake(self) -> Waker:
        """To be called when there may be news."""
        return self._woken.set

    async def events(self, tail: Tail) -> Events:
        """The events, until a worker lost a partition; raises ``Problem`` if the request is at fault."""
        try:
            self._memory.take(PART_BYTES * len(self._parts))
            while not self._ends:
                self._woken.clear()
                self._own.start()
                events = self._next(tail)
                if events is not None or boot_ms() - self._sent_boot_ms >= KEEP_ALIVE_MS:
                    self._sent_boot_ms = boot_ms()
                    yield events
                else:
                    await self._wait()
        finally:
            self._own.close()

    def _next(self, tail: Tail) -> EncodedEvents | Event | None:
        """What is to be sent next, None if there is nothing at the moment; raises ``Problem``."""
        while not self._ready:
            self._before.clear()
            if (read := self._own.take()) is not None:
                self._take_own(tail, read)
            elif not self._take_news(tail):
                return self._about_the_replicas(tail)
        return self._sent()

    def _sent(self) -> EncodedEvents:
        """All that is ready, with an id if one is due.

        Of several events the first has one too. A client that receives no other then gets the rest again, and of
        what it has forgotten all, from no replica that is behind what it received.
        """
        if boot_ms() >= self._id_due_boot_ms:
            cursors = {one: part.cursor for one, part in self._parts.items() if part.cursor is not None}
            if len(self._ready) > 1:
                self._ready[0] += self._id_line(cursors | self._before)
            self._ready[-1] += self._id_line(cursors)
        body = b"\n".join(self._ready) + b"\n"
        self._ready = []
        return EncodedEvents(body)

    def _take_own(self, tail: Tail, read: OwnRead) -> None:
        """Take over a page that this client read by itself."""
        partition, part, page = read
        if not self._is_within_bounds(page):
            # The client took long to receive what was before it: it is read again.
            left = "A page had left its bounds before the client took it."
            part.put_off(LagExceedsTolerance(left, store=self._source.selection.spec.name))
            return
        if page.reset and part.cursor is not None:
            self._to_reset.append(partition)
        self._send_resets()
        self._send(part, page)
        if page.cursor.whole and not page.more:
            self._own.remove(partition)
            tail.follow(partition, page)
            # The others may be further already.
            self._catch_up(tail, partition)
            return
        if page.more and not (part.reads_state or page.reset):
            part.pace_changes()
        self._woken.set()

    def _take_news(self, tail: Tail) -> bool:
        """Take over what all who follow the same get; returns whether there was any."""
        if tail.losses != self._losses:
            self._losses = tail.losses
            for partition in self._parts.keys() - set(self._own):
                if partition in tail.pages:
                    self._catch_up(tail, partition)
                else:
                    self._own.add(partition)
        for partition in tail.news_since(self._version):
            if partition not in self._own:
                self._catch_up(tail, partition)
        self._version = tail.version
        return bool(self._ready)

    def _catch_up(self, tail: Tail, partition: int) -> None:
        """Send a partition's newest page if this client has missed just that; it reads by itself otherwise."""
        part = self._parts[partition]
        assert part.cursor is not None
        try:
            page = tail.missed_by(partition, part.cursor)
        except LookupError:
            self._own.add(partition)
            return
        if page is not None:
            if self._is_within_bounds(page):
                self._send(part, page)
            else:
                self._own.add(partition)

    def _is_within_bounds(self, page: ChangesPage) -> bool:
        return self._source.tolerance().met_by(page.lag_at(boot_ms()))

    def _send_resets(self) -> None:
        if not self._to_reset:
            return
        partitions, self._to_reset = sorted(self._to_reset), []
        for partition in partitions:
            self._parts[partition].cursor = None
        document = {"store": self._source.selection.spec.name, "partitions": partitions}
        # With an older id, the client would be taken to have what it has just forgotten.
        self._id_due_boot_ms = 0.0
        self._ready.append(Event("reset", _json(document)).fields())

    def _send(self, part: Part, page: ChangesPage) -> None:
        upper = page.cursor.upper if part.cursor is None else max(page.cursor.upper, part.cursor.upper)
        known = self._before.get(page.partition, part.cursor)
        before = page.cursor._replace(after=b"") if known is None else known
        self._before[page.partition] = before._replace(upper=upper)
        part.cursor = page.cursor._replace(upper=upper)
        self._ready += page.events(self._source.selection, boot_ms())

    def _about_the_replicas(self, tail: Tail) -> EncodedEvents | Event | None:
        """A problem or a lag event, if one is due."""
        now = boot_ms()
        failing = self._failing(tail)
        if failing:
            if self._problem_due_boot_ms is None:
                self._problem_due_boot_ms = now + self._timeout_ms
            return self._problem_event(failing, now) if now >= self._problem_due_boot_ms else None
        self._problem_due_boot_ms = now + self._timeout_ms if self._own else None
        if now < self._lag_due_boot_ms or self._own or not self._is_fresh(tail, now):
            return None
        lag = tail.lag_at(now)
        if not self._source.tolerance().met_by(lag):
            # The next poll shows whether it is beyond the bounds.
            return None
        self._lag_due_boot_ms = now + self._lag_interval_ms
        for partition, part in self._parts.items():
            assert part.cursor is not None
            # Nothing has changed since, or it would have been sent.
            part.cursor = _later(part.cursor, tail.cursor(partition))
        self._id_due_boot_ms = 0.0
        store = json.dumps(self._source.selection.spec.name).encode()
        self._ready.append(Event("lag", b'{"store":%b,"lag":%b}' % (store, lag_json(lag))).fields())
        return self._sent()

    def _failing(self, tail: Tail) -> dict[int, Problem]:
        """Why partitions cannot be read at the moment."""
        problems = {one: part.problem for one in self._own if (part := self._parts[one]).problem is not None}
        return {**problems, **{one: problem for one, problem in tail.problems.items() if one not in problems}}

    def _problem_event(self, failing: dict[int, Problem], now: float) -> Event:
        self._problem_due_boot_ms = now + self._timeout_ms
        # The client of a worker finds the partition elsewhere.
        self._ends = any(isinstance(problem, NotHostedHere) for problem in failing.values())
        _, problem = min(failing.items())
        return Event("problem", _json({**problem.document(), "partitions": sorted(failing)}))

    def _is_fresh(self, tail: Tail, now: float) -> bool:
        pages = tail.pages
        return len(pages) == len(self._parts) and all(
            now - page.as_of_boot_ms <= _FRESH_MS for page in pages.values()
        )

    def _id_line(self, cursors: dict[int, ChangesCursor]) -> bytes:
        """The id that tells how far the client is."""
        selection = self._source.selection
        identity = encode_id(selection.digest, selection.partitions, cursors)
        if len(identity) > _LARGE_ID_CHARACTERS:
            self._id_due_boot_ms = boot_ms() + _BETWEEN_IDS_MS
        return b"id: %b\n" % identity.encode()

    async def _wait(self) -> None:
        """Sleep until there may be something to send or to read: thousands wait, and each time takes of reads."""
        now = boot_ms()
        about = [one for one in (self._lag_due_boot_ms, self._problem_due_boot_ms) if one is not None]
        due = [one if one > now else now + _OVERDUE_PAUSE_MS for one in about]
        until = min(self._sent_boot_ms + KEEP_ALIVE_MS, *due, *self._own.due_boot_ms())
        timer = self._wakes.at(self._woken.set, until)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()


def _json(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _later(cursor: ChangesCursor, polled: ChangesCursor) -> ChangesCursor:
    """Where a client is that has all of a polled cursor."""
    return polled._replace(upper=max(cursor.upper, polled.upper)) if polled.reaches(cursor) else cursor
