"""Changes of many keys through the router: pages from whichever replica can answer, and polls of the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from forebay.clock import boot_ms
from forebay.errors import Problem
from forebay.event_loop_turns import decoded_in_turn
from forebay.lag import Tolerance
from forebay.streams_metadata import HostInfo
from forebay.timeouts import running_timeout
from forebay.wire.answer_aging import as_of
from forebay.wire.answers import HttpAnswer, problem_of
from forebay.wire.parameters import ReadParameters, split_query
from forebay_router.reads.refusals import document_of
from forebay_router.reads.replica_read import ask
from forebay_router.reads.replica_request import ReplicaRequest
from forebay_router.router import Router
from forebay_router.upstream.opener import REFUSALS
from forebay_web.store_changes.cursors import ChangesCursor
from forebay_web.store_changes.follower import OF_THE_CLIENT
from forebay_web.store_changes.pages import CHANGES_MEDIA_TYPE, ChangesPage, PagesRequest, decode_outcomes
from forebay_web.store_changes.selection import KeySelection

_ACCEPT = CHANGES_MEDIA_TYPE.encode()
_GRACE_MS = 1_000
"""How much longer than it was to wait a worker may be silent."""


@dataclass(frozen=True)
class RoutedSource:
    """The ``Source`` of what one query follows: the replicas of all workers."""

    router: Router
    selection: KeySelection
    parameters: ReadParameters
    query: bytes
    """As received."""

    @property
    def partitions(self) -> Sequence[int]:
        return self.selection.partitions

    def tolerance(self) -> Tolerance:
        return self.router.tolerance(self.selection.spec, self.parameters)

    async def page(self, partition: int, cursor: ChangesCursor | None, *, state: bool) -> ChangesPage:
        request = replace(
            self._request(partition, PagesRequest({partition: cursor}, state)),
            decode=partial(decoded_in_turn, ChangesPage.decode),
        )
        # Followers share what is read for one of them, so its own time is not theirs.
        parameters = replace(self.parameters, wait_ms=0, timeout_ms=None)
        answer, as_of_boot_ms, page, _ = await ask(
            self.router, request, parameters, self.router.deadline(parameters)
        )
        if answer.status != 200:
            raise _problem(answer)
        return _as_of(page, as_of_boot_ms)

    async def poll(self, host: str, request: PagesRequest) -> Mapping[int, ChangesPage | Problem]:
        router, worker = self.router, HostInfo.parse(host)
        # Polls are neither reads in flight nor do they show how fast a worker is.
        polled = replace(self._request(0, request), multi_partition=True)
        doubted = polled.spec.name in router.cluster.doubted
        rendered = polled.render(worker, request.wait_ms + _GRACE_MS, router.credentials(), doubted=doubted)
        begun = boot_ms()
        try:
            answer = await self._polled(worker, rendered, request.wait_ms)
        except OSError as error:
            if not isinstance(error, TimeoutError):
                router.cluster.on_unreachable(worker)
            router.counts["failovers"] += 1
            raise
        router.cluster.on_answer(worker)
        if answer.status in REFUSALS:
            router.cluster.on_auth_rejected(worker, answer.status)
        if answer.status != 200:
            raise _problem(answer)
        try:
            outcomes = decode_outcomes(answer.body)
        except ValueError as error:
            raise OSError(str(error)) from None
        as_of_boot_ms = as_of(answer, begun, boot_ms())
        if any(isinstance(one, dict) and one.get("status") == 421 for one in outcomes.values()):
            router.discovery.refresh(worker)
        return {
            partition: _as_of(one, as_of_boot_ms) if isinstance(one, ChangesPage) else problem_of(one)
            for partition, one in outcomes.items()
        }

    async def _polled(self, worker: HostInfo, request: bytes, wait_ms: int) -> HttpAnswer:
        async with running_timeout((wait_ms + _GRACE_MS) / 1000):
            connections = self.router.pool[worker]
            permit = connections.permit()
            permit.release()
            return await connections.request(request, dedicated_connection=True, permit=permit)

    def _request(self, partition: int, changes: PagesRequest) -> ReplicaRequest:
        query = [item.received for item in split_query(self.query) if item.name not in OF_THE_CLIENT]
        return ReplicaRequest(
            self.selection.spec,
            partition,
            b"/v1/stores/%b/changes?%b" % (self.selection.spec.name_bytes, b"&".join(query)),
            changes.encode(),
            accept=_ACCEPT,
            dedicated_connection=True,
        )


def _as_of(page: ChangesPage, as_of_boot_ms: float) -> ChangesPage:
    return replace(page, as_of_boot_ms=as_of_boot_ms)


def _problem(answer: HttpAnswer) -> Problem:
    return problem_of({"status": answer.status, **document_of(answer.body)})
