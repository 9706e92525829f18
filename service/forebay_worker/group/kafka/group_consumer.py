"""A Kafka consumer that only takes part in a group: it is assigned no partition and reads nothing.

The only module that uses private members of ``aiokafka``: its public API can neither request a rebalance nor
report when the coordinator last heard of a member. A test fails if a version no longer has these internals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    KafkaError,
    NoError,
    RebalanceInProgressError,
)

from forebay.clock import boot_ms

if TYPE_CHECKING:
    from forebay_worker.group.kafka.membership import KafkaMembership

PROTOCOL = "forebay"
_KEEPS_ALIVE = frozenset({"HeartbeatRequest", "JoinGroupRequest", "SyncGroupRequest"})
_MAX_POLL_INTERVAL_MS = 30_000
_MIN_REQUEST_TIMEOUT_MS = 5_000
_METADATA_MAX_AGE_MS = 5_000
_VERSION = 0
_LEAVE_S = 3.0

# It logs every heartbeat of a rebalance and all empty assignments; the membership logs what matters.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class _Assignor:
    """The assignment strategy for aiokafka; KIP-535 uses user data in the same way.

    All methods of the membership but ``lead`` are called in the consumer's event loop.
    """

    name = PROTOCOL

    def __init__(self, membership: KafkaMembership) -> None:
        self._membership = membership
        self._members: dict[str, bytes] = {}

    def metadata(self, topics: Any) -> Any:
        return ConsumerProtocolMemberMetadata(_VERSION, list(topics), self._membership.subscription())

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        # Called in the event loop, which an assignment must not hold up.
        self._members = {name: bytes(member.user_data) for name, member in members.items()}
        return {}

    def lead(self) -> dict[str, Any]:
        assignments = self._membership.lead(self._members)
        return {
            name: ConsumerProtocolMemberAssignment(_VERSION, [], assignments.get(name, b""))
            for name in self._members
        }

    def on_assignment(self, assignment: Any) -> None:
        self._membership.follow(bytes(assignment.user_data))


class GroupConsumer:
    """One member of a consumer group; raises aiokafka's ``KafkaError`` if no broker answers.

    ``on_heard(sent_boot_ms)`` is called with the send time of every request that shows the coordinator that this
    member is alive.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        group_id: str,
        membership: KafkaMembership,
        session_timeout_ms: int,
        on_heartbeat: Callable[[float], None],
    ) -> None:
        self._assignor = _Assignor(membership)
        request_timeout_ms = max(_MIN_REQUEST_TIMEOUT_MS, 2 * session_timeout_ms)
        self._consumer = AIOKafkaConsumer(
            **connection,
            group_id=group_id,
            partition_assignment_strategy=(self._assignor,),
            enable_auto_commit=False,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=max(50, session_timeout_ms // 12),
            max_poll_interval_ms=max(_MAX_POLL_INTERVAL_MS, session_timeout_ms),
            # A frozen coordinator answers nothing; the brokers replace it after some seconds. A join that takes
            # longer is repeated.
            request_timeout_ms=request_timeout_ms,
            # The others wait no longer for the leader's assignment.
            rebalance_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=_METADATA_MAX_AGE_MS,
        )
        self._on_heartbeat = on_heartbeat
        self._leading: asyncio.Task[dict[str, Any]] | None = None

    async def join(self, topic: str) -> None:
        """Connect and join, in the background; the topic only needs to exist."""
        await self._consumer.start()
        coordinator = self._consumer._coordinator
        send = coordinator._send_req

        async def send_and_tell(request: Any) -> Any:
            sent = boot_ms()
            response = await send(request)
            known = response.error_code in (NoError.errno, RebalanceInProgressError.errno)
            if type(request).__name__ in _KEEPS_ALIVE and known:
                self._on_heartbeat(sent)
            return response

        decode_members = coordinator._perform_assignment

        async def perform_assignment(response: Any) -> dict[str, Any]:
            await decode_members(response)
            return await self._lead()

        coordinator._send_req = send_and_tell
        coordinator._perform_assignment = perform_assignment
        self._consumer.subscribe([topic])

    async def _lead(self) -> dict[str, Any]:
        """Lead a round; heartbeats keep this member in the group meanwhile, which otherwise rest until its end."""
        coordinator = self._consumer._coordinator
        coordinator._start_heartbeat_task()
        self._leading = asyncio.create_task(asyncio.to_thread(self._assignor.lead))
        try:
            return await asyncio.shield(self._leading)
        finally:
            await coordinator._stop_heartbeat_task()

    async def poll(self, timeout_ms: int) -> None:
        """Show that this member is not stuck; raises errors from which the coordination cannot recover."""
        await self._consumer.getmany(timeout_ms=timeout_ms)

    def request_rejoin(self) -> None:
        """Ask for a rebalance, in which every member reports its lags again."""
        self._consumer._coordinator.request_rejoin()

    async def leave(self) -> None:
        """Leave the group and disconnect; brokers that do not answer notice by themselves."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._consumer.stop(), _LEAVE_S)
        if self._leading is not None:
            # The membership leads one round at a time.
            await asyncio.gather(self._leading, return_exceptions=True)


def refusal(error: Exception, group_id: str, url: str) -> str:
    """Why a group does not take a member, and the remedy: brokers that are away are only one cause."""
    if isinstance(error, InconsistentGroupProtocolError):
        return (
            f"The group {group_id!r} at {url} has a member that is no worker of forebay: another consumer has "
            "this application_id as its group.id. Stop it or give it another one; 'kafka-consumer-groups.sh "
            f"--describe --members --group {group_id}' shows where it runs."
        )
    if isinstance(error, GroupAuthorizationFailedError):
        return f"This worker's principal may not read the group {group_id!r} at {url}: see docs/kafka.md."
    if isinstance(error, InvalidSessionTimeoutError):
        return (
            f"The brokers at {url} refuse session_timeout_ms: set it between their group.min.session.timeout.ms "
            "and group.max.session.timeout.ms."
        )
    return f"The worker group at {url} cannot be reached: {error}"


__all__ = ["PROTOCOL", "GroupConsumer", "KafkaError", "refusal"]
