"""The documents that the console reads, the same on both tiers: health, replicas by page, history, time line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import UNSET, Struct
from msgspec.structs import replace

from forebay.errors import BadParameter, NotReady, Problem, UnknownStore
from forebay.store_spec import StoreSpec
from forebay.wire.answer_schemas.components import reference
from forebay.wire.answer_schemas.members import Role
from forebay.wire.answers import json_answer
from forebay.wire.parameters import natural_parameters, text_parameters
from forebay_console.answer_schemas import (
    HealthAnswer,
    HistoryAnswer,
    LiveReplica,
    PartitionCondition,
    ReplicasAnswer,
    TimelineAnswer,
)
from forebay_console.health import health_answer
from forebay_console.history import Bounds, History, history_answer
from forebay_console.timeline import Timeline, TimelineEvent
from forebay_web.application import respond, responses
from forebay_web.health.findings import findings_of, gravest_first
from forebay_web.health.store_counts import StoreCounts
from forebay_web.health.survey import ReplicaState, Survey, Surveyed, by_role, condition, first_replica
from forebay_web.request_guard import sees

_MAX_PARTITIONS = 1_000
_DEFAULT_PARTITIONS = 200


def partition_replicas(partition: int, replicas: Sequence[ReplicaState]) -> PartitionCondition:
    """One partition of the answer."""
    first = first_replica(replicas)
    return PartitionCondition(partition, condition(first), [*map(_replica, by_role(replicas))])


def _replica(replica: ReplicaState) -> LiveReplica:
    """One replica; members that say nothing are left out."""
    return LiveReplica(
        *replica.lag,
        host=replica.host,
        role=cast(Role, replica.role),
        live=replica.live,
        lagging=replica.lagging,
        failure=UNSET if replica.failure is None else replica.failure,
        restored_records=UNSET if replica.restored_records is None else replica.restored_records,
        restore_seconds_left=UNSET if replica.restored_records is None else replica.restore_seconds_left,
    )


class ConsoleProcess(Surveyed, Protocol):
    """A process that these routes describe."""

    @property
    def state(self) -> str:
        """Its state, as in ``/v1/status``."""

    def application(self) -> tuple[str, str]:
        """Application id and topology fingerprint; raises ``NotReady`` while they are unknown."""

    def spec(self, store: str) -> StoreSpec:
        """A store's specification; raises ``UnknownStore`` or ``NotReady``."""


@dataclass
class Console:
    """What a process remembers for the console."""

    tier: Literal["router", "worker"]
    process: ConsoleProcess
    history: History
    survey: Survey
    timeline: Timeline

    @classmethod
    def of(
        cls,
        tier: Literal["router", "worker"],
        process: ConsoleProcess,
        counters: Callable[[], Mapping[str, StoreCounts]] | None = None,
    ) -> Console:
        """The console of a process; ``counters`` returns ``StoreCounts`` by store, None if it has none."""
        timeline = Timeline()
        survey = Survey(process, timeline.on_survey)
        history = History(
            counters,
            lambda: {store.store: store.lag for store in survey.newest.stores.values() if store.partitions},
        )
        return cls(tier, process, history, survey, timeline)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Survey and sample meanwhile."""
        tasks = [asyncio.create_task(self.survey.run()), asyncio.create_task(self.history.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def health(self) -> HealthAnswer:
        """``GET /v1/health``."""
        surveys = self.survey.newest
        found = findings_of(surveys, knows_all_replicas=self.process.knows_all_replicas)
        findings = gravest_first([*self.process.own_findings(), *found])
        try:
            application_id: str | None = self.process.application()[0]
        except NotReady:
            application_id = None
        return health_answer(self.tier, application_id, self.process.state, surveys, findings)

    def replicas(self, store: str, first: int, limit: int) -> ReplicasAnswer:
        """``GET /v1/stores/{store}/replicas``; raises ``UnknownStore`` or ``NotReady``."""
        process = self.process
        spec = process.spec(store)
        end = min(first + limit, spec.partitions)
        known = ((partition, process.replica_states(spec, partition)) for partition in range(first, end))
        return ReplicasAnswer(
            store=store,
            generation=process.metadata.map.generation.number,
            partitions=[
                partition_replicas(partition, replicas)
                for partition, replicas in known
                if replicas or process.knows_all_replicas
            ],
            next=end if end < spec.partitions else None,
        )


def add_console_routes(app: FastAPI, console: Console, bounds: Bounds | None) -> None:
    """Add the documents."""

    def get(
        path: str, operation_id: str, shape: type[Struct], *problems: type[Problem], **parameters: str
    ) -> Callable[..., object]:
        documented = [_parameter(name, text) for name, text in parameters.items()]
        return app.get(
            path,
            tags=["console"],
            operation_id=operation_id,
            response_class=Response,
            responses=responses(*problems, schema=reference(shape)),
            openapi_extra={"parameters": documented} if documented else None,
        )

    @get("/v1/health", "health", HealthAnswer, BadParameter)
    async def health(request: Request) -> Response:
        """What is served, within what age, by how many workers; what is wrong, and the remedy."""
        text_parameters(request.scope["query_string"])
        answer = console.health()
        shown = [one for one in answer.stores if sees(request.scope, one.store)]
        if len(shown) < len(answer.stores):
            # What concerns several stores names them in its text.
            names = {one.store for one in shown}
            answer = replace(answer, stores=shown, findings=[one for one in answer.findings if one.store in names])
        return respond(json_answer(answer))

    @get("/v1/timeline", "timeline", TimelineAnswer, BadParameter)
    async def timeline(request: Request) -> Response:
        """What changed of late: assignments, promotions, restores, workers."""
        text_parameters(request.scope["query_string"])
        events = console.timeline.events()
        return respond(json_answer(TimelineAnswer([one for one in events if _is_shown(one, request)])))

    @get(
        "/v1/stores/{store}/replicas",
        "replicas",
        ReplicasAnswer,
        NotReady,
        UnknownStore,
        BadParameter,
        **{"from": "First partition.", "limit": f"Maximum number of partitions, at most {_MAX_PARTITIONS}."},
    )
    async def replicas(request: Request) -> Response:
        """The replicas of a store by partition, a page at a time: worker, role, lag as of now."""
        numbers = natural_parameters(request.scope["query_string"], **{"from": 0, "limit": _DEFAULT_PARTITIONS})
        if not 1 <= numbers["limit"] <= _MAX_PARTITIONS:
            raise BadParameter(f"limit= must be 1 to {_MAX_PARTITIONS}.", parameter="limit")
        page = console.replicas(request.path_params["store"], numbers["from"], numbers["limit"])
        return respond(json_answer(page))

    @get(
        "/v1/stores/{store}/history",
        "history",
        HistoryAnswer,
        NotReady,
        UnknownStore,
        BadParameter,
        after_ms="Only samples after this moment, epoch milliseconds.",
    )
    async def history(request: Request) -> Response:
        """The last minutes of a store, by second: reads, times, refusals, lag; and the lag of recent answers."""
        after_ms = natural_parameters(request.scope["query_string"], after_ms=0)["after_ms"]
        store = console.process.spec(request.path_params["store"]).name
        return respond(json_answer(history_answer(store, console.history.samples(store), bounds, after_ms)))


def _is_shown(event: TimelineEvent, request: Request) -> bool:
    return event.store is None or sees(request.scope, event.store)


def _parameter(name: str, text: str) -> dict[str, Any]:
    schema = {"type": "integer", "minimum": 0}
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
