"""A uvicorn protocol that lets a handler answer recognised requests before they become ASGI calls."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from forebay.clock import boot_ms
from forebay.lag import UNLIMITED
from forebay.request_trace import RequestTrace, context_of
from forebay.wire.answers import HttpAnswer, problem_answer
from forebay_web.application import cors_headers
from forebay_web.fast_path.pending import ABANDONED, FILLED, PendingResponse, head_of, render
from forebay_web.fast_path.recogniser import (
    PreparedRequests,
    RecognisedBatch,
    Recogniser,
    RequestTemplate,
    recognise_batch,
)
from forebay_web.fast_path.slow_path import SlowPathProtocol
from forebay_web.hosts import AllowedHosts
from forebay_web.large_answers import LargeAnswer, pieces_of
from forebay_web.limits import Held, Limits, Peer, accepted_peer

log = logging.getLogger(__name__)

_MAX_ORIGINS = 1024
_MAX_UNSENT_BYTES = 8 << 10
"""Above this, answers are sent in the middle of a turn: a router that pipelines many reads can begin with their
answers, and a peer that stopped reading holds back the next."""
_MAX_PENDING = 256
"""Outstanding answers on one connection above which nothing more is read from it, while they are small. It begins
with one: how large they are is not known before."""
_MAX_IN_A_TURN = 128
"""Requests of one connection that are answered in a turn of the event loop: less than a millisecond's work."""
_MAX_OF_A_TURN_S = 0.002
"""Fewer, if they take longer, as those of long keys do."""
_MAX_PENDING_BYTES = 1 << 20
"""Limit in bytes for this many answers as large as the last."""
Outcome = HttpAnswer | PendingResponse | None
"""An answer at once, a slot of the protocol's to be filled later, or None, upon which FastAPI answers."""
KeyHandler = Callable[[bytes, "FastPathProtocol"], Outcome]
"""Answers a read of the key with this segment, received on this connection."""


@lru_cache(maxsize=_MAX_ORIGINS)
def _origin_lines(origins: tuple[str, ...], origin: bytes) -> bytes:
    """The header lines of an answer for an origin, each ended by CRLF."""
    return b"".join([b"%b: %b\r\n" % header for header in cors_headers(origins, origin)])


class Handlers(Protocol):
    """A tier's handlers of recognised requests."""

    def key(self, template: RequestTemplate) -> KeyHandler:
        """What answers reads of one key in this form: prepared once, and used for all of them."""

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> Outcome:
        """Answer a ``batch-get``."""


class _PreparedRead(NamedTuple):
    """What is prepared for reads in one form: ``lines`` are their answers' header lines for its origin."""

    template: RequestTemplate
    read: KeyHandler
    lines: bytes


class FastPathProtocol(SlowPathProtocol):
    """Offers complete requests to the handlers while the connection is between two ordinary ones."""

    prepared_requests: ClassVar[PreparedRequests[_PreparedRead]]
    batch_handler: ClassVar[Callable[[RecognisedBatch, FastPathProtocol], Outcome]]
    hosts: ClassVar[AllowedHosts]
    draining: ClassVar[Callable[[], bool]]
    origins: ClassVar[tuple[str, ...]]
    limits: ClassVar[Limits]
    tier: ClassVar[str]
    trace: RequestTrace | None = None
    """That of the request which is being handled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recogniser = Recogniser(self.prepared_requests)
        self._pending: deque[PendingResponse] = deque()
        self._max_pending = 1
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._held = b""
        self._ended = False
        self._turn_is_over = False
        """Whether requests are left to the next turn of the event loop."""
        self._fast_requests = 0
        self._fast_requests_at_timer = 0
        self._unread_bytes = self._waiting_bytes = 0
        """Of answers that the client has not read, and of those that wait for others, counted as held by it."""
        self._memory: Held | None = None
        """What is counted of these; None while there are none."""
        self._connection: Held
        self.accepted: Held | None = None
        """What was held of the limit of connections before this one was ready."""
        self._accepted_peer: Peer | None = None
        """Who sent the last request that was accepted, where one connection may have several clients."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection for its address; one too many is refused and closed."""
        super().connection_made(transport)
        self.address = self.limits.peers.named(self.client[0] if self.client else "")
        if self.accepted is not None:
            self.accepted.release()
        refusal = self.limits.connections.refusal(self.address)
        self._connection = self.limits.connections.held_by(self.address)
        self._connection.adjust(1)
        if refusal is not None:
            answer = problem_answer(refusal)
            transport.write(render(answer._replace(head=answer.head + b"connection: close\r\n")))
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop what is still done for it, and count nothing of it any more."""
        super().connection_lost(exc)
        self._connection.release()
        self._unread_bytes = self._waiting_bytes = 0
        self._count_held()
        self._held = b""
        for pending in self._pending:
            pending.abandon()
        # They refer to the connection, and hold their answers.
        self._pending.clear()

    def peer(self, template: RequestTemplate) -> Peer:
        """Whose request in this form it is, once it is accepted."""
        peers = self.limits.peers
        if not peers.by_request:
            return self.address
        address = self.client[0] if self.client else ""
        self._accepted_peer = peers.sent_by(address, template.authorization, template.forwarded)
        return self._accepted_peer

    def pause_writing(self) -> None:
        """Too much waits for the peer, and is counted as its own until it is read."""
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._count_held()

    def _reader(self) -> Peer:
        """Whose answers are being sent: several clients with tokens may share an address."""
        running = self._running
        if running is None or running.response_complete:
            return self._accepted_peer or self.address
        return accepted_peer(cast(Mapping[str, Any], running.scope)) or self.address

    def _count_held(self) -> None:
        held_bytes = self._unread_bytes + self._waiting_bytes
        if self._memory is None:
            self._memory = self.limits.memory_of(self._reader())
        self._memory.adjust(held_bytes - self._memory.amount)
        if not held_bytes:
            self._memory.release()
            self._memory = None

    def on_waiting(self, size_bytes: int) -> None:
        """An answer of this size waits for those before it."""
        self._waiting_bytes += size_bytes
        if size_bytes > _MAX_UNSENT_BYTES:
            self._count_held()

    def data_received(self, data: bytes) -> None:
        """Answer what is recognised; leave the rest to the parser, once every earlier answer is sent."""
        if not self._pending and not self._held and self._between_requests():
            # Nearly always: one whole request, and nothing else going on.
            recognised = self._recogniser.recognise(data)
            if recognised is not None:
                (_, read, lines), segment = recognised
                if self._answered(self._handle(read, segment, last=True), lines):
                    return
                self._parse(data)
                return
            # Only by itself: it takes as long as a hundred reads, and others must have their turn.
            batch = recognise_batch(data)
            if batch is not None and self.hosts.allows(batch.template.host):
                handler = type(self).batch_handler
                if batch.trace is not None:
                    handler = partial(_handle_traced, handler, batch.trace)
                outcome = self._handle(handler, batch, last=True)
                if self._answered(outcome, self._lines(batch.template)):
                    return
                self._parse(data)
                return
        self._receive_more(data)

    def _answered(self, outcome: Outcome, lines: bytes) -> bool:
        """Whether a handler gave an answer, or will; None is before it."""
        if outcome is None:
            return False
        self._count()
        if type(outcome) is HttpAnswer:
            self._send(render(outcome, lines))
        else:
            self._pending.append(cast(PendingResponse, outcome))
        return True

    def _receive_more(self, data: bytes) -> None:
        if self._refusal:
            return
        if self._held:
            self._held += data
            self._hold_back(len(self._held))
            return
        at = self._answer_on_fast_path(data)
        if at >= len(data):
            return
        rest = data[at:] if at else data
        if self._pending or self._turn_is_over:
            # The framework must not answer before the outstanding answers are sent, and others have their turn.
            self._held = rest
            self._hold_back(len(rest))
            if not self._pending:
                self.loop.call_soon(self._send_filled)
            return
        self._parse(rest)

    def _waits(self) -> bool:
        return any(pending.waits for pending in self._pending) or super()._waits()

    def _parse(self, data: bytes) -> None:
        """Leave it to the parser and the framework, once all that is ready is sent."""
        self.send_now()
        super().data_received(data)

    def _answer_on_fast_path(self, data: bytes) -> int:
        """The start of the first request that is not for the fast path."""
        at = answered = 0
        until_s = perf_counter() + _MAX_OF_A_TURN_S
        while at < len(data) and self._between_requests() and len(self._pending) < self._max_pending:
            self._turn_is_over = answered >= _MAX_IN_A_TURN or (answered > 0 and perf_counter() > until_s)
            if self._turn_is_over:
                break
            answered += 1
            found = self.prepared_requests.find(data, at)
            if found is None:
                break
            (template, read, lines), begin, segment_end, end = found
            outcome = self._handle(read, data[begin:segment_end], last=end == len(data))
            if type(outcome) is HttpAnswer and self._pending:
                pending = PendingResponse(self, lines)
                self._pending.append(pending)
                pending.fill(outcome, (template.store, UNLIMITED))
                self._count()
            elif not self._answered(outcome, lines):
                break
            at = end
        return at

    def _send(self, answer: bytes) -> None:
        self._unsent.append(answer)
        self._unsent_bytes += len(answer)
        if len(self._unsent) == 1:
            # Once all that this turn of the loop received was handled. Why: a write to a sleeping peer also wakes
            # it, which costs more than the write itself. So it is woken once for all its answers.
            self.loop.call_soon(self.send_now)
        if self._unsent_bytes > _MAX_UNSENT_BYTES:
            self.send_now()

    def send_now(self) -> None:
        """Write the answers that wait for the end of the turn."""
        unsent = self._unsent
        if unsent:
            if not self.transport.is_closing():
                self.transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
            unsent.clear()
            self._unsent_bytes = 0

    def _count(self) -> None:
        if self._patience is not None:
            self._end_patience()
        self._fast_requests += 1
        self.server_state.total_requests += 1
        if self.timeout_keep_alive_task is None:
            self._arm_keep_alive()

    def _handle(
        self, handler: Callable[[Any, FastPathProtocol], Outcome], request: bytes | RecognisedBatch, *, last: bool
    ) -> Outcome:
        """The handler's answer; while draining, the last request received is left to the route.

        The route closes the connection after its answer, so anything after it would be lost.
        """
        if last and type(self).draining():
            return None
        try:
            return handler(request, self)
        except Exception:
            # The route answers, with its own error handling.
            log.exception("the fast path failed")
            return None

    def _lines(self, template: RequestTemplate) -> bytes:
        return _origin_lines(self.origins, template.origin)

    @property
    def has_pending(self) -> bool:
        """Whether the answer to an earlier request is not sent yet."""
        return bool(self._pending)

    def pending(self, template: RequestTemplate) -> PendingResponse:
        """A place for a request's answer; the handler that returns it fills it later."""
        return PendingResponse(self, self._lines(template))

    def send_if_next(self, pending: PendingResponse, answer: HttpAnswer) -> bool:
        """Send a slot's answer if those of all earlier ones are sent; otherwise it waits in its slot."""
        pending_responses = self._pending
        if not pending_responses or pending_responses[0] is not pending or self.flow.write_paused:
            return False
        pending_responses.popleft()
        sent = pending.rendered(answer)
        self._send(sent)
        if pending_responses or self._held or self._ended:
            self._adapt(len(sent))
            self._send_filled()
        return True

    async def send_large(self, pending: PendingResponse, answer: LargeAnswer) -> None:
        """Send the answer of a slot whose predecessors are sent, as fast as the client reads."""
        lines = pending.lines if pending.trace is None else pending.lines + pending.trace.head(self.tier)
        self._send(head_of(answer, answer.size_bytes, lines))
        self.send_now()
        for piece in pieces_of(answer.parts):
            await self.flow.drain()
            if self.transport.is_closing():
                return
            self.transport.write(piece)
            await asyncio.sleep(0)
        if pending.state is ABANDONED:
            return
        self._pending.popleft()
        self._adapt(answer.size_bytes)
        self._send_filled()

    def _send_filled(self) -> None:
        """Send every answer whose predecessors are sent, and continue with the input held back for them."""
        pending_responses = self._pending
        while pending_responses and pending_responses[0].state is FILLED and not self.flow.write_paused:
            pending = pending_responses.popleft()
            self._waiting_bytes -= pending.waiting_bytes
            sent = pending.render()
            self._send(sent)
            self._adapt(len(sent))
        if self._memory is not None:
            self._count_held()
        if self._ended and not pending_responses:
            self.send_now()
            self._close()
        if self._held and not pending_responses and not self.flow.write_paused and not self.transport.is_closing():
            held, self._held = self._held, b""
            self.flow.resume_reading()
            # This may be in the task of the request before.
            context_of(None).run(self.data_received, held)

    def _adapt(self, answer_bytes: int) -> None:
        """Allow more outstanding answers on this connection while they are small, fewer if they are large."""
        if answer_bytes * self._max_pending > _MAX_PENDING_BYTES:
            self._max_pending = max(1, self._max_pending // 2)
        else:
            self._max_pending = min(_MAX_PENDING, 2 * self._max_pending)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_bytes = 0
        self._count_held()
        if self._pending or self._held:
            self._send_filled()

    def shutdown(self) -> None:
        self.send_now()
        if self._pending:
            self._ended = True
        else:
            super().shutdown()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's is asked; uvicorn's has no answer.
        """A client that has closed its half still gets its outstanding answers, unless one may wait for long:
        then it has left. Without any, or with TLS, which asyncio does not half-close, it is disconnected."""
        self.send_now()
        if self.scheme != "http" or self._held:
            return False
        if self._pending:
            self._ended = not self._waits()
            return self._ended
        return self._ends_after_answer()

    def _arm_keep_alive(self) -> None:
        self._fast_requests_at_timer = self._fast_requests
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; if it was used since the timer was set, set another timer."""
        self.timeout_keep_alive_task = None
        if self._pending or self._fast_requests != self._fast_requests_at_timer:
            self._arm_keep_alive()
        elif not self.transport.is_closing():
            self._close()


def _handle_traced(
    handler: Callable[[Any, FastPathProtocol], Outcome],
    trace: RequestTrace,
    request: bytes | RecognisedBatch,
    protocol: FastPathProtocol,
) -> Outcome:
    """The handler's answer to a request with a trace."""
    protocol.trace = trace = trace._replace(received_boot_ms=boot_ms())
    try:
        outcome = handler(request, protocol)
    finally:
        protocol.trace = None
    return trace.stated(outcome, protocol.tier) if type(outcome) is HttpAnswer else outcome


def left_to_slow_path(segment: bytes, protocol: FastPathProtocol) -> None:
    """Handles reads in a form that is not for the fast path."""


def make_protocol(
    tier: str,
    handlers: Handlers,
    hosts: AllowedHosts,
    origins: tuple[str, ...],
    draining: Callable[[], bool],
    limits: Limits,
) -> type[FastPathProtocol]:
    """A protocol class for uvicorn's ``http`` setting, bound to a tier, its handlers, the ``origins`` that
    browsers may read from, and limits. Requests for other ``hosts`` are left to the framework, which refuses
    them."""

    def prepare(template: RequestTemplate) -> _PreparedRead:
        try:
            # The route explains. The host is checked once for each form, so that no read takes longer for it.
            is_left = b"explain=" in template.query or not hosts.allows(template.host)
            read = left_to_slow_path if is_left else handlers.key(template)
        except Exception:
            log.exception("the fast path failed")
            read = left_to_slow_path
        return _PreparedRead(template, read, _origin_lines(origins, template.origin))

    def traced(prepared: _PreparedRead, trace: RequestTrace) -> _PreparedRead:
        return prepared._replace(read=partial(_handle_traced, prepared.read, trace))

    bound = {
        "tier": tier,
        "prepared_requests": PreparedRequests(prepare, traced),
        "batch_handler": staticmethod(handlers.batch),
        "hosts": hosts,
        "draining": staticmethod(draining),
        "origins": origins,
        "limits": limits,
    }
    return type("BoundFastPathProtocol", (FastPathProtocol,), bound)
