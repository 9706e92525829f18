"""The asynchronous client, of which ``forebay_client.blocking`` is generated."""

from __future__ import annotations

import asyncio
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

import httpx

from forebay.errors import Problem
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import StreamsMetadataState
from forebay.wire.parameters import DEFAULT_LIMIT
from forebay_client import fork_safety
from forebay_client.async_connections import AsyncConnections, AsyncTurn
from forebay_client.client_connections import NOT_PARTITION_AWARE, maker
from forebay_client.description_plans import Descriptions
from forebay_client.exchange import Close, Discard, Exchange, Pause, Plan, Receive, Reply, Step
from forebay_client.httpx_clients import shut_down
from forebay_client.key_changes import C, Following
from forebay_client.options import ALL_KEYS, DEFAULT_TIMEOUT_MS, ReadOptions, Time
from forebay_client.positions import Positions
from forebay_client.proxies import proxies_of
from forebay_client.read_plans import ChangesRequest, ClientReads, Listing, ListRequest, RecordAge
from forebay_client.results import Answer, Change, Entry, ReplicaLag, SessionWindow, Version, Window
from forebay_client.server_urls import server_urls, socket_paths
from forebay_client.store_changes import StoreChange, StoreChangesRequest

T = TypeVar("T")


class AsyncDriver:
    """Takes the steps of plans, one after the other."""

    def __init__(self, connections: AsyncConnections) -> None:
        self.connections = connections
        self._lock = threading.Lock()
        self._following: weakref.WeakSet[Any] = weakref.WeakSet()
        """Changes, which the client's closing ends."""
        fork_safety.renew_on_fork(self)

    def on_fork(self) -> None:
        """A thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    async def run(self, plan: Plan[T]) -> T:
        """The plan's result; raises what the plan raises."""
        reply: Reply = None
        while True:
            try:
                step = plan.send(reply)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                reply = await self._take(step)
            except httpx.RequestError as error:
                reply = error

    async def _take(self, step: Step) -> Reply:
        match step:
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None
            case Receive(opened):
                return await self.connections.receive(opened)
            case Close(opened):
                await self.connections.end(opened)
                return None
            case Discard(response):
                shut_down(response)
                return None
        return await self.connections.send(step)

    def follow(self, changes: Any) -> None:
        """Have the client's closing end what follows keys."""
        with self._lock:
            self._following.add(changes)

    async def aclose(self) -> None:
        """End what follows keys, then close the connections."""
        with self._lock:
            following = list(self._following)
        for changes in following:
            await changes.aclose()
        await self.connections.aclose()


class AsyncItems(Listing[T], AsyncIterator[T]):
    """The items of a list; ``next`` raises ``forebay.errors.Problem`` if a page is refused."""

    def __init__(
        self, driver: AsyncDriver, reads: ClientReads, wanted: ListRequest[T], limit: int | None, page_size: int
    ) -> None:
        super().__init__(reads, wanted, limit, page_size)
        self._driver = driver

    async def __anext__(self) -> T:
        while not self._in_hand:
            if self._over:
                raise StopAsyncIteration
            await self._driver.run(self._next_page())
        return self._in_hand.popleft()


class AsyncChanges(Following[C], AsyncIterator[C]):
    """The changes that are followed, without end; ``next`` waits for one. After a cancellation it reconnects."""

    def __init__(
        self, driver: AsyncDriver, reads: ClientReads, wanted: ChangesRequest | StoreChangesRequest
    ) -> None:
        super().__init__(reads, wanted)
        self._driver = driver
        self._taking = AsyncTurn()
        """Held while a change is waited for."""
        driver.follow(self)

    def on_fork(self) -> None:
        """The stream in hand is the parent's."""
        super().on_fork()
        self._taking = AsyncTurn()

    async def __anext__(self) -> C:
        async with self._taking:
            change = await self._driver.run(self._next_change())
        if change is None:
            raise StopAsyncIteration
        return change

    async def aclose(self) -> None:
        """Close the connection; there are no more changes."""
        self._closed = True
        opened = self._opened
        if opened is not None:
            self._driver.connections.interrupt(opened)
        async with self._taking:
            await self._driver.run(self._close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


class AsyncReader:
    """The reads, of a client or of a session.

    Each takes ``ReadOptions`` and raises the ``forebay.errors.Problem`` that the server answers with, or
    ``NoReplica`` if no server can be reached and ``DeadlineExceeded`` if the time is over. Beside problems, raises
    ``AnswerMismatch`` if servers answer for another store or key, and ``ClientUnusable`` once it is closed.
    """

    def __init__(self, driver: AsyncDriver, reads: ClientReads) -> None:
        self._driver = driver
        self._reads = reads

    async def get(
        self,
        store: str,
        key: Any,
        *,
        as_of: Time | None = None,
        max_record_age_ms: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> Answer:
        """The value of a key, a JSON value; from a versioned store, as of a time.

        Raises ``UnknownKey`` if there is none; its ``lag`` says how far behind that answer may be. If no replica
        is within the bounds, raises ``LagExceedsTolerance`` with the best ``lag`` found, and if the value itself
        was written longer than ``max_record_age_ms`` ago ``RecordTooOld``.
        """
        return await self._driver.run(self._reads.get(store, key, as_of, max_record_age_ms, options))

    async def get_many(
        self,
        store: str,
        keys: Sequence[Any],
        *,
        as_of: Time | None = None,
        max_record_age_ms: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> list[Answer | Problem]:
        """The answer or the problem of each key, in the order of the keys; any number of keys.

        A key's problem is returned, not raised, and the key is not retried.
        """
        return await self._driver.run(self._reads.get_many(store, keys, as_of, max_record_age_ms, options))

    def entries(
        self,
        store: str,
        *,
        start: Any = None,
        end: Any = None,
        prefix: str | bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
        page_size: int = DEFAULT_LIMIT,
        allow_partial: bool = False,
        max_record_age_ms: int | None = None,
        skip_old: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncItems[Entry]:
        """The entries of a key-value store whose keys are in ``[start, end)``, in stored order.

        ``prefix`` selects keys whose bytes begin with it, such as the first letters of strings. ``limit`` is the
        maximum number of entries in all, ``page_size`` the maximum per request. If an entry was written longer
        than ``max_record_age_ms`` ago, raises ``RecordTooOld``, or leaves it out with ``skip_old``.
        """
        age = RecordAge(max_record_age_ms, skip_old)
        wanted = ListRequest(Entry, store, ALL_KEYS, start, end, reverse, options, age, allow_partial, prefix)
        return AsyncItems(self._driver, self._reads, wanted, limit, page_size)

    def windows(
        self,
        store: str,
        key: Any = ALL_KEYS,
        *,
        start: Time | None = None,
        end: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
        page_size: int = DEFAULT_LIMIT,
        allow_partial: bool = False,
        max_record_age_ms: int | None = None,
        skip_old: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncItems[Window]:
        """The windows, of a key or of all, that start in ``[start, end)``: by key, then by start.

        ``limit`` is the maximum number of windows in all, ``page_size`` the maximum per request. Only a list over
        all keys may be partial. ``max_record_age_ms`` and ``skip_old`` are as for ``entries``.
        """
        age = RecordAge(max_record_age_ms, skip_old)
        wanted = ListRequest(Window, store, key, start, end, reverse, options, age, allow_partial)
        return AsyncItems(self._driver, self._reads, wanted, limit, page_size)

    def sessions(
        self,
        store: str,
        key: Any = ALL_KEYS,
        *,
        start: Time | None = None,
        end: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
        page_size: int = DEFAULT_LIMIT,
        allow_partial: bool = False,
        max_record_age_ms: int | None = None,
        skip_old: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncItems[SessionWindow]:
        """The session windows, of a key or of all, that overlap ``[start, end)``: by key, then by end.

        The other arguments are as for ``windows``.
        """
        age = RecordAge(max_record_age_ms, skip_old)
        wanted = ListRequest(SessionWindow, store, key, start, end, reverse, options, age, allow_partial)
        return AsyncItems(self._driver, self._reads, wanted, limit, page_size)

    def versions(
        self,
        store: str,
        key: Any,
        *,
        start: Time | None = None,
        end: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
        page_size: int = DEFAULT_LIMIT,
        max_record_age_ms: int | None = None,
        skip_old: bool = False,
        **options: Unpack[ReadOptions],
    ) -> AsyncItems[Version]:
        """The versions of a key that became valid in ``[start, end)``, the oldest first.

        The other arguments are as for ``windows``.
        """
        age = RecordAge(max_record_age_ms, skip_old)
        wanted = ListRequest(Version, store, key, start, end, reverse, options, age)
        return AsyncItems(self._driver, self._reads, wanted, limit, page_size)

    @overload
    def changes(
        self, store: str, key: Any, *, lag_interval_ms: int | None = None, **options: Unpack[ReadOptions]
    ) -> AsyncChanges[Change]: ...

    @overload
    def changes(
        self,
        store: str,
        *,
        keys: Sequence[Any] | None = None,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        lag_interval_ms: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> AsyncChanges[StoreChange]: ...

    def changes(
        self,
        store: str,
        key: Any = ALL_KEYS,
        *,
        keys: Sequence[Any] | None = None,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        lag_interval_ms: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> AsyncChanges[Any]:
        """The current value of a key, then each new one; values in between may be skipped.

        Yields an ``Answer``, or ``UnknownKey`` if there is no value, never older than the one before; with
        ``lag_interval_ms`` also a ``ReplicaInfo`` at that interval between changes. Reconnects by itself: while no
        replica can serve, yields the ``Problem`` that says why, every ``timeout_ms`` or so. Raises a ``Problem``
        if the request is at fault, or if there is one instead of a stream to begin with.

        Without a key, the same of these ``keys``, of a range as ``entries`` has it (of windows and sessions: of
        times), or of the whole store: yields a ``Reset``, then ``Values`` and ``Absent``, and with
        ``lag_interval_ms`` a ``StoreLag``. After another ``Reset``, forget what its partitions had.
        """
        if key is not ALL_KEYS:
            if any(one is not None for one in (keys, prefix, start, end)):
                raise TypeError("changes follows either a key, or keys, a prefix or a range.")
            return AsyncChanges(self._driver, self._reads, ChangesRequest(store, key, lag_interval_ms, options))
        wanted = StoreChangesRequest(store, keys, prefix, start, end, lag_interval_ms, options)
        return AsyncChanges(self._driver, self._reads, wanted)


class AsyncClient(AsyncReader):
    """Reads from a router or a worker, or from the first of several that can be reached.

    Its arguments are those of ``Client``. Each event loop has connections of its own, which end with the loop, so
    that several may share a client, in several threads too; with a ``transport``, only one loop may. It is
    pickled as a ``Client`` is. Raises ``ValueError`` for an invalid HTTP URL, proxy or token.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        token: str | None = None,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
        partition_aware: bool = False,
        decimals: bool = False,
    ) -> None:
        if partition_aware:
            raise ValueError(NOT_PARTITION_AWARE)
        servers = server_urls(urls)
        proxies = {} if transport is not None else proxies_of(servers)
        exchange = Exchange(urls, timeout_ms, proxies=proxies, decimals=decimals)
        reads = ClientReads(exchange)
        self._descriptions = Descriptions(exchange)
        connections = AsyncConnections(token, verify, transport, proxies, socket_paths(servers))
        super().__init__(AsyncDriver(connections), reads)
        self._arguments = {"urls": servers, "timeout_ms": timeout_ms, "token": token, "decimals": decimals}
        self._arguments |= {"verify": verify, "transport": transport}

    def __reduce__(self) -> tuple[partial[AsyncClient], tuple[()]]:
        """A client is pickled as its arguments, the token among them, and connects where it is unpickled."""
        return maker(type(self), self._arguments), ()

    def session(self) -> AsyncSession:
        """A session: its reads never go back in time. It ends when the client is closed."""
        return AsyncSession(self._driver, self._reads)

    async def stores(self, *, timeout_ms: int | None = None) -> dict[str, StoreSpec]:
        """Every store by name: kind, codecs, partitions."""
        return await self._driver.run(self._descriptions.stores(timeout_ms))

    async def metadata(self, *, timeout_ms: int | None = None) -> StreamsMetadataState:
        """Which worker holds what as of now, with the look-ups of KIP-535, which make no further request.

        A worker's or router's own lags are those of ``lags``; there are no local ones. Raises ``NotReady`` from a
        look-up before the first assignment.
        """
        return await self._driver.run(self._descriptions.metadata(timeout_ms))

    async def lags(self, store: str | None = None, *, timeout_ms: int | None = None) -> list[ReplicaLag]:
        """Every replica that the server knows, or those of a store, and how far behind each is.

        Raises ``UnknownStore``. A worker knows its own replicas only.
        """
        return await self._driver.run(self._descriptions.lags(store, timeout_ms))

    async def aclose(self) -> None:
        """Close the connections; there are no more changes of the keys that are followed."""
        await self._driver.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


class AsyncSession(AsyncReader):
    """Reads that never go back in time: each sees at least what those before it saw, from whichever replica.

    A read raises ``PositionNotReached`` if no replica is that far: give it ``wait_ms`` to wait. After a log was
    replaced, reads raise ``PositionOfAnotherLog``: continue with a new session.
    """

    def __init__(self, driver: AsyncDriver, reads: ClientReads) -> None:
        self._positions = Positions()
        super().__init__(driver, reads.in_session(self._positions))

    def position(self, store: str) -> str | None:
        """The position token of what was read from a store, None before the first read."""
        return self._positions.get(store)

    def read_after(self, store: str, token: str | None) -> None:
        """Read at least up to a token, such as ``sink.position(store)``; None has no effect.

        Raises ``BadParameter`` if it is not a position token.
        """
        if token is not None:
            self._positions.add(store, token)
