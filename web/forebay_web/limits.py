"""Limits that a process sets to all its clients together, and of which each leaves a part to the others."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from starlette.types import Scope

from forebay.bearer_tokens import holder_of
from forebay.clock import boot_ms
from forebay.errors import Overloaded
from forebay.settings import RouterSettings, WorkerSettings
from forebay_web.forwarding import TrustedProxies, forwarded_chain
from forebay_web.tickets import TICKET_HOLDER

_AT = {"requests": 0, "waiting": 1, "memory": 2, "streams": 3, "connections": 4}
"""Where each peer counts what it has of a limit."""
_LEFT_TO_OTHERS = 8
"""The last such part of a limit is for peers that hold less than that."""
_PEER = "forebay.peer"
_MEGABYTE = 1 << 20
_PAUSE_S = 0.005
_MIN_KEPT_DESCRIPTORS = 64


class Peer:
    """One client: its token if requests are authenticated, else its address. What it holds of each limit."""

    __slots__ = ("__weakref__", "held", "name")

    def __init__(self, name: bytes | str) -> None:
        self.name = name
        self.held = [0] * len(_AT)
        """In the order of the limits."""


class Peers:
    """The clients that hold something, by token or address.

    Tokens count only ``by_token``: of requests that nobody authenticates, any number could be sent. Clients of
    trusted ``proxies`` count by their own addresses.
    """

    def __init__(self, *, by_token: bool, proxies: TrustedProxies) -> None:
        self.by_token = by_token
        self.proxies = proxies
        self.by_request = by_token or proxies.any
        """Whether requests on one connection may be of several clients."""
        self._known: WeakValueDictionary[bytes | str, Peer] = WeakValueDictionary()

    def named(self, name: bytes | str) -> Peer:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = Peer(name)
        return found

    def of(self, scope: Scope) -> Peer:
        """The peer that sent an accepted request."""
        client = scope.get("client")
        address = client[0] if client else ""
        if not self.by_request:
            return self.named(address)
        # Kept for what the connection counts: the answer, until it is read.
        if self.by_token and scope.get(TICKET_HOLDER):
            peer = scope[_PEER] = self.named(scope[TICKET_HOLDER].digest)
            return peer
        peer = scope[_PEER] = self.sent_by(
            address,
            b"".join(_values(scope, b"authorization")),
            forwarded_chain(_values(scope, b"x-forwarded-for"), _values(scope, b"forwarded")),
        )
        return peer

    def sent_by(self, address: str, authorization: bytes, chain: bytes) -> Peer:
        """The peer of an accepted request, by the connection's address and what the request's headers say."""
        if self.by_token and authorization:
            return self.named(holder_of(authorization))
        return self.named(self.proxies.client(address, chain) if chain else address)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]


def accepted_peer(scope: Mapping[str, Any]) -> Peer | None:
    """The peer that was found to have sent a request, None if only its connection tells."""
    found: Peer | None = scope.get(_PEER)
    return found


class Limit:
    """How much all peers may hold of something.

    One peer may take all but the last eighth, which is for those that hold less than that: whatever one client
    does, the next is served. What answers take that a client does not read is counted whatever the limit, so that
    large ones may hold more than all; the last eighth is still there for small ones.
    """

    def __init__(self, what: str, most: int, refusal: str) -> None:
        self.most = most
        self.used = 0
        self._used_by_small = 0
        """By peers that hold no more than the last eighth."""
        self._at = _AT[what]
        self._refusal = refusal
        self._kept = most // _LEFT_TO_OTHERS
        self.open = most - self._kept
        """How much is for whoever comes."""

    def refusal(self, peer: Peer, amount: int = 1) -> Overloaded | None:
        """Why a peer gets no more, None if it does."""
        after = self.used + amount
        if after <= self.open:
            return None
        if peer.held[self._at] + amount <= self._kept and (
            after <= self.most or self._used_by_small + amount <= self._kept
        ):
            return None
        return Overloaded(self._refusal, retry_after_s=1)

    def count(self, peer: Peer, amount: int = 1) -> None:
        """Count what a peer holds already, or, if negative, gives back; only for the owner of that."""
        at, kept = self._at, self._kept
        before = peer.held[at]
        after = peer.held[at] = before + amount
        self.used += amount
        self._used_by_small += (after if after <= kept else 0) - (before if before <= kept else 0)

    def held_by(self, peer: Peer, amount: int = 0) -> Held:
        """An owner of a peer's part, with this much of it; raises ``Overloaded`` rather than let it queue."""
        held = Held(self, peer)
        held.take(amount)
        return held


class Held:
    """What one owner holds of a limit for a peer: given back by ``release``, at the end of the block, once.

    After that it holds nothing, whatever still comes for it.
    """

    __slots__ = ("_is_released", "_limit", "_peer", "amount")

    def __init__(self, limit: Limit, peer: Peer) -> None:
        self._limit = limit
        self._peer = peer
        self._is_released = False
        self.amount = 0
        """How much is held."""

    def take(self, more: int) -> None:
        """Hold more; raises ``Overloaded``."""
        refusal = self._limit.refusal(self._peer, more) if more else None
        if refusal is not None:
            raise refusal
        self.adjust(more)

    async def reserve(self, more: int, within_ms: float) -> None:
        """Hold more as soon as there is room; raises ``Overloaded`` if there is none in time."""
        until = boot_ms() + within_ms
        # Room comes back in many places, and is seldom lacking.
        while self._limit.refusal(self._peer, more) is not None and boot_ms() < until:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        self.take(more)

    def adjust(self, more: int) -> None:
        """Hold more, or less, than was reserved: what has arrived is held, whatever the limit."""
        if not self._is_released:
            self._limit.count(self._peer, more)
            self.amount += more

    def may_take(self, more: int) -> bool:
        """Whether there is room for as much more."""
        return self._limit.refusal(self._peer, more) is None

    def refusal(self) -> Overloaded | None:
        """Why what is held, which arrived whatever the limit, is too much; None if it is not."""
        return self._limit.refusal(self._peer, 0)

    def release(self) -> None:
        """Give all of it back; repeated calls have no effect."""
        self.adjust(-self.amount)
        self._is_released = True

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def connections_allowed(most: int) -> int:
    """How many connections a process takes: a part of its descriptors is kept for stores, logs and the group."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(most, descriptors - max(_MIN_KEPT_DESCRIPTORS, descriptors // 4)))


class Limits:
    """A process's limits: requests in flight, waiting reads, memory for requests, event streams, connections."""

    def __init__(self, settings: WorkerSettings | RouterSettings) -> None:
        self.peers = Peers(
            by_token=settings.authenticator is not None or settings.auth_tokens_file is not None,
            proxies=TrustedProxies(settings.trusted_proxies),
        )
        self.requests = Limit(
            "requests",
            settings.max_in_flight,
            f"{settings.max_in_flight} requests are in flight, the limit of this process (max_in_flight).",
        )
        self.waiting = Limit(
            "waiting",
            settings.max_in_flight,
            f"{settings.max_in_flight} reads already wait for their bounds, the limit of this process "
            "(max_in_flight); ask without wait_ms, or later.",
        )
        self.memory = Limit(
            "memory",
            settings.request_memory_bytes,
            f"Requests in progress hold {settings.request_memory_bytes // _MEGABYTE} MB of bodies, pages and "
            "answers, the limit of this process (request_memory_bytes); slow clients hold it longest.",
        )
        self.streams = Limit(
            "streams",
            settings.max_event_streams,
            f"{settings.max_event_streams} event streams are open, the limit of this process (max_event_streams); "
            "try another one, or retry later.",
        )
        most = connections_allowed(settings.max_connections)
        self.connections = Limit(
            "connections", most, f"{most} connections are open, the limit of this process (max_connections)."
        )
        self.held: dict[str, Callable[[], int]] = {
            "requests": lambda: self.requests.used,
            "waiting": lambda: self.waiting.used,
            "memory": lambda: self.memory.used,
            "streams": lambda: self.streams.used,
            "connections": lambda: self.connections.used,
        }
        """All that is taken and must be given back, by name: whoever counts something else adds it."""

    def metrics(self, prefix: str) -> Iterator[Metric]:
        """How much of each limit is used, under names with this prefix."""
        for name, text, limit in (
            ("in_flight", "Reads in flight.", self.requests),
            ("waiting_reads", "Reads in progress that wait, or may wait, for their bounds.", self.waiting),
            ("request_memory_bytes", "Bodies, pages and answers of requests in progress.", self.memory),
            ("event_streams", "Event streams open.", self.streams),
            ("connections", "Connections open.", self.connections),
        ):
            yield GaugeMetricFamily(f"{prefix}_{name}", text, value=limit.used)
        yield self._held()

    def _held(self) -> Metric:
        family = GaugeMetricFamily(
            "forebay_held",
            "What clients hold now: 0 of everything once the last has left, but for connections.",
            labels=["what"],
        )
        for what, used in self.held.items():
            family.add_metric([what], used())
        return family

    def memory_of(self, peer: Peer) -> Held:
        """The memory that a peer's request is going to hold."""
        return Held(self.memory, peer)
