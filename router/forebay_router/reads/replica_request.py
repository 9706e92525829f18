"""The replicas of a read's partition: what is known of them, what a read sends to them, and what it gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay.clock import boot_ms
from forebay.codecs.keys import JsonKey
from forebay.errors import UnknownKey
from forebay.lag import Tolerance
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import Generation, HostInfo
from forebay.wire.answer_aging import answer_by_now
from forebay.wire.answers import HttpAnswer
from forebay.wire.parameters import ReadParameters
from forebay.wire.scans import SCAN_HEADER
from forebay_router.router import Router
from forebay_router.upstream.connection import Admit
from forebay_web.explanations import explained
from forebay_web.limits import Held

DOUBTED = b"doubted=true"
_SCAN = SCAN_HEADER.encode() + b": "
_LARGE_ANSWER_MS = 250.0
"""A page or a batch takes longer than the single keys from which the hedge delay is learnt."""


class NamedKey(NamedTuple):
    """A key of a store as it stands in answers to reads of it.

    A connection whose answers are out of step would otherwise return another key's value, with a plausible lag.
    """

    document: bytes
    """How the document of a value begins."""
    members: bytes
    """What the document of a miss contains."""

    @classmethod
    def of(cls, spec: StoreSpec, plain: bytes) -> NamedKey:
        """The names of a key, by its plain bytes."""
        key = spec.key_codec.to_json(plain)
        # A miss is written as JSON anew.
        again = _written(json.loads(key)) if isinstance(spec.key_codec, JsonKey) else key
        return cls(
            b'{"store":"%b","key":%b,' % (spec.name_bytes, key),
            b'"store":"%b","key":%b' % (spec.name_bytes, again),
        )

    def is_in(self, answer: HttpAnswer) -> bool:
        """Whether an answer is for this key, as far as its kind of answer says."""
        if answer.status == 200:
            return answer.body.startswith(self.document)
        return answer.status != UnknownKey.status or self.members in answer.body


def _written(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


@dataclass(frozen=True)
class ReplicaRequest:
    """A request to a partition's replicas.

    ``dedicated_connection`` keeps it off shared connections. ``multi_partition`` means that it contains keys of
    several partitions with the same candidates. ``excluded`` workers are not asked. If ``no_wait``, workers are
    told not to wait, whatever the client allows.
    """

    spec: StoreSpec
    partition: int
    target: bytes
    body: bytes | None = None
    accept: bytes = b""
    dedicated_connection: bool = False
    multi_partition: bool = False
    excluded: frozenset[HostInfo] = frozenset()
    no_wait: bool = False
    page_bytes: int = 0
    """How large the answer may become, if it is a page."""
    named: NamedKey | None = None
    """The key that the answer must be for."""
    scan_head: bytes = b""
    """The header line of the list that the page must be of."""
    memory: Held | None = None
    """What its client holds, to which a hedge's copy of the body is added."""
    admit: Admit | None = None
    """Makes room for a large answer before it is read; only on a dedicated connection."""
    decode: Callable[[Sequence[bytes]], Awaitable[Any]] | None = None
    """Reads the parts of an answer's body in the form of ``accept``; raises ``ValueError``."""

    def render(
        self, host: HostInfo, left_ms: int, credentials: bytes, *, waits: bool = True, doubted: bool = False
    ) -> bytes:
        """The request's bytes for one worker; ``credentials`` is the authorization line, if any.

        ``doubted`` tells it that keys of the store are in partitions that are not theirs.
        """
        method, target = b"GET" if self.body is None else b"POST", self.target
        own = [] if self.multi_partition else [b"partition=%d" % self.partition]
        own += [DOUBTED] * doubted
        if own:
            target += (b"&" if b"?" in target else b"?") + b"&".join(own)
        lines = [
            b"%b %b HTTP/1.1" % (method, target),
            b"host: " + str(host).encode(),
            b"forebay-deadline-ms: %d" % left_ms,
        ]
        if not waits:
            lines.append(b"forebay-wait-ms: 0")
        if self.accept:
            lines.append(b"accept: " + self.accept)
        if self.page_bytes:
            lines.append(b"forebay-page-bytes: %d" % self.page_bytes)
        if self.body is not None:
            lines += [b"content-type: application/json", b"content-length: %d" % len(self.body)]
        return b"\r\n".join(lines) + b"\r\n" + credentials + b"\r\n" + (self.body or b"")

    async def read(self, answer: HttpAnswer, parts: Sequence[bytes]) -> Any:
        """An answer's body as ``decode`` reads it, in turns with other requests.

        Raises ``ValueError`` if it is not in the form that was asked for: a worker of another version may not know
        that, and one that lies sends anything.
        """
        if not self.accept or answer.status != 200:
            return None
        if b"content-type: " + self.accept + b"\r\n" not in answer.head:
            raise ValueError("answered in another version's format")
        if _SCAN in answer.head and self.scan_head not in answer.head:
            raise ValueError("answered with a page of another list")
        return None if self.decode is None else await self.decode(parts)


class TimedAnswer(NamedTuple):
    """One partition's answer, and as of when its lag is right, since it or others may have taken longer."""

    answer: HttpAnswer
    as_of_boot_ms: float
    decoded: Any = None
    """Its body, as the request's ``decode`` reads it."""
    size_bytes: int = 0
    """What that took as it arrived."""


class FirstRequest(NamedTuple):
    """A request that was sent to a worker before the read became one with a driver of its own.

    Its answer may have come already. It ends with ``UpstreamClosed`` or ``AnsweredForAnother`` if there is none.
    """

    host: HostInfo
    sent_boot_ms: float
    answer: asyncio.Future[HttpAnswer]


def answered_by_now(timed: TimedAnswer, store: str, tolerance: Tolerance) -> HttpAnswer:
    """A single key's answer with its present lag; a refusal if that is beyond the bounds."""
    waited_ms = boot_ms() - timed.as_of_boot_ms
    return answer_by_now(timed.answer, waited_ms, tolerance, store, "it had arrived")


def may_be_elsewhere(parameters: ReadParameters) -> bool:
    """Whether a replica that would have to wait may not be the only one to ask."""
    return parameters.wait_ms > 0 and not parameters.require_active


@dataclass(frozen=True)
class PartitionReplicas:
    """What this router knows of a partition's replicas now, for a policy of reads; ``large`` if answers may be."""

    router: Router
    spec: StoreSpec
    partition: int
    parameters: ReadParameters
    large: bool = False

    @property
    def generation(self) -> Generation:
        return self.router.metadata.map.generation

    def candidates(self) -> Sequence[HostInfo]:
        found = self.router.candidates(self.spec, self.partition, self.parameters)
        if (explanation := explained.get()) is not None:
            explanation.note("candidates", partition=self.partition, hosts=self._known_of(found))
        return found

    def _known_of(self, hosts: Sequence[HostInfo]) -> list[dict[str, Any]]:
        """What is known of some candidates, in their order."""
        router = self.router
        holders = {one.host: one for one in router.cluster.holders(self.spec, self.partition, router.pool.load)}
        return [
            {
                "host": str(host),
                "role": holder.role,
                "lag": holder.lag.document(),
                "alive": holder.live,
                "suspect": holder.suspect,
                "lagging": holder.lagging,
                "near": holder.near,
                "in_flight": holder.load,
            }
            for host in hosts
            if (holder := holders.get(host)) is not None
        ]

    def is_full(self, host: HostInfo) -> bool:
        return self.router.full(host)

    def is_healthy(self, host: HostInfo) -> bool:
        return self.router.cluster.is_healthy(host)

    def hedge_delay_ms(self) -> float:
        delay_ms = self.router.delay.delay_ms
        return max(delay_ms, _LARGE_ANSWER_MS) if self.large else delay_ms

    def spend_hedge(self) -> bool:
        return self.router.budget.spend()
