"""Membership by Kafka's consumer-group protocol, as in KIP-535: a custom assignor's user data are the messages.

The group is control plane only. Its members are assigned no partitions, since separate consumers read the tasks;
so a rebalance touches no tail, is cheap, and can be requested whenever lags have changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from forebay.clock import boot_ms, epoch_ms
from forebay.errors import ChangelogError
from forebay.logs import LogThrottle
from forebay.streams_metadata import NO_GENERATION, Generation, HostInfo, is_loopback
from forebay.task_ids import TaskId
from forebay_changelog.kafka.url import KafkaUrl
from forebay_worker.group.election import superseded
from forebay_worker.group.group_member import GroupMember, Inbox
from forebay_worker.group.kafka.assignments import AssignmentTopic, digest
from forebay_worker.group.kafka.group_consumer import GroupConsumer, KafkaError, refusal
from forebay_worker.group.leader import GroupTimeouts, Leader
from forebay_worker.group.membership import Membership
from forebay_worker.group.messages import AssignmentInfo, SubscriptionInfo, UnsupportedVersion
from forebay_worker.group.previous_assignment import with_places_of
from forebay_worker.group.subscriptions import SubscriptionReader, one_a_process

log = logging.getLogger(__name__)

MAX_INLINE_BYTES = 512 * 1024
"""Assignments that are larger than this, summed over the members, are sent through the topic."""
_POLL_MS = 100
_REBALANCE_CHECK_INTERVAL_MS = 1_000.0
_RETRY_S = 1.0
_TOO_OLD_PAUSE_S = 60.0
"""Each return of a member that cannot read the leader's messages costs the others a rebalance."""
_REFERENCE = b"@"
"""Before the digest of an assignment that is in the topic."""


class KafkaMembership(Membership):
    """One worker's membership; the group id is the application id."""

    def __init__(
        self, url: str, leader: Leader, times: GroupTimeouts, clock: Callable[[], float] = boot_ms
    ) -> None:
        super().__init__(GroupMember(leader.topology, times))
        self._url = KafkaUrl.parse(url)
        self._leader = leader
        self._topology = leader.topology
        self._times = times
        self._clock = clock
        self._reader = SubscriptionReader()
        self._topic = AssignmentTopic(self._url, self._topology.application_id)
        self._newest: AssignmentInfo | None = None
        self._joined_with: SubscriptionInfo | None = None
        self._caught_up_reported: dict[TaskId, float] = {}
        """When a rebalance was last requested because the copy of a task under way had caught up."""
        self._first_incarnation = int(epoch_ms())
        self._round_is_open = False
        self._missed_round = False
        """Whether others may follow a newer assignment, of a round whose end this member missed."""
        self._steps_down = False
        self._too_old = False
        """Whether the leader's messages need a newer version than this."""
        self._logged = LogThrottle()

    @classmethod
    def group_url(cls, changelog: str) -> str:
        """The changelog's own cluster."""
        return changelog

    @classmethod
    def open(cls, url: str, leader: Leader, times: GroupTimeouts) -> KafkaMembership:
        """The membership of a consumer group; see ``Membership``."""
        return cls(url, leader, times)

    def _check_address(self) -> None:
        self._warn_of_loopback(self._subscription().host)

    def _warn_of_loopback(self, host: HostInfo) -> None:
        brokers = [server.rpartition(":")[0].strip("[]") for server in self._url.bootstrap_servers.split(",")]
        if is_loopback(host.host) and not all(map(is_loopback, brokers)):
            log.warning(
                "this worker advertises %s, which other machines cannot reach: set --advertise to an "
                "address of its own.",
                host,
            )

    def _run(self) -> None:
        asyncio.run(self._take_part())

    async def _take_part(self) -> None:
        while not self._stopping.is_set():
            try:
                await self._be_member()
            except (KafkaError, ChangelogError, OSError) as error:
                reason = refusal(error, self._topology.application_id, str(self._url))
                if self._logged.allow(reason):
                    log.warning("%s", reason)
                self.refusal = reason
            except Exception:
                log.exception("the membership failed; it will be retried")
            self._pause(_RETRY_S)

    async def _be_member(self) -> None:
        """Join and stay until stopped, or until another member should lead."""
        await asyncio.to_thread(self._topic.ensure)
        await asyncio.to_thread(self._read_newest_assignment)
        self._missed_round = True
        consumer = GroupConsumer(
            self._url.aiokafka(),
            self._topology.application_id,
            self,
            self._times.session_timeout_ms,
            self._on_heartbeat,
        )
        try:
            await consumer.join(self._topic.name)
            checked_boot_ms = self._clock()
            while not (self._stopping.is_set() or self._steps_down or self._too_old):
                await consumer.poll(_POLL_MS)
                due_boot_ms = min(checked_boot_ms + _REBALANCE_CHECK_INTERVAL_MS, self.member.next_round_boot_ms)
                if self._clock() >= due_boot_ms and not self._round_is_open:
                    checked_boot_ms = self._clock()
                    if await asyncio.to_thread(self._wants_rebalance) and not self._round_is_open:
                        self.member.next_round_boot_ms = math.inf
                        consumer.request_rejoin()
        finally:
            await consumer.leave()
        if self._too_old:
            self._pause(_TOO_OLD_PAUSE_S)
            self._too_old = False
        elif self._steps_down:
            self._steps_down = False
            self._pause(self._times.session_timeout_ms / 1000)

    def _pause(self, seconds: float) -> None:
        """Wait in the event loop's own thread: nothing else runs in it then, and there may be no other thread."""
        self._stopping.wait(seconds)

    def _on_heartbeat(self, sent_boot_ms: float) -> None:
        self.refusal = None
        self.member.on_heartbeat(sent_boot_ms)

    def _wants_rebalance(self) -> bool:
        """Whether since the join the copy of a task under way has caught up or the health has changed, or the
        leader's next rebalance is due.

        A copy whose lag swings about the limit counts once per ``probing_rebalance_interval_ms``: each rebalance
        costs all members.
        """
        now, mine, before = self._clock(), self._subscription(), self._joined_with
        if before is None:
            return False
        if now >= self.member.next_round_boot_ms or mine.health is not before.health:
            return True
        since = now - self._times.probing_rebalance_interval_ms
        reported_lately = {task for task, at_boot_ms in self._caught_up_reported.items() if at_boot_ms > since}
        caught_up = self._caught_up(mine) - self._caught_up(before) - reported_lately
        self._caught_up_reported |= dict.fromkeys(caught_up, now)
        return bool(caught_up)

    def _caught_up(self, mine: SubscriptionInfo) -> frozenset[TaskId]:
        """The tasks under way to their target whose copy here, at these offsets, is caught up."""
        newest = self._newest
        if newest is None or newest.fingerprint != self._topology.fingerprint:
            return frozenset()
        moving = newest.assignment.moving
        if not moving:
            return frozenset()
        copies = {task: mine.offsets[task] for task in moving & mine.offsets.keys() - mine.unchecked}
        lags = self._leader.lags({"me": copies})["me"]
        return frozenset(task for task, lag in lags.items() if lag <= self._leader.policy.acceptable_recovery_lag)

    def subscription(self) -> bytes:
        """The message to the leader, requested at each join."""
        # Only a member without a lease can have been expelled.
        self._missed_round |= self._round_is_open or self._clock() >= self.lease_until_boot_ms
        self._round_is_open = True
        self._joined_with = self._subscription()
        return self.member.subscription(self._joined_with).encode()

    def lead(self, members: Mapping[str, bytes]) -> dict[str, bytes]:
        """Turns all members' messages into the message for each."""
        started_boot_ms = self._clock()
        try:
            return self._assign(members, started_boot_ms)
        finally:
            self._warn_of_long_round(self._clock() - started_boot_ms)

    def _warn_of_long_round(self, took_ms: float) -> None:
        """A rebalance extends no lease, so one that outlasts a session leaves the group without actives."""
        if took_ms >= self._times.session_timeout_ms:
            log.warning(
                "an assignment took %.1f s, longer than session_timeout_ms: no worker was active until it ended. "
                "If this continues, raise session_timeout_ms.",
                took_ms / 1000,
            )

    def _assign(self, members: Mapping[str, bytes], now: float) -> dict[str, bytes]:
        inbox = self._inbox(members)
        fingerprints = [subscription.fingerprint for subscription in inbox.subscriptions.values()]
        if not self.member.elect(fingerprints, led=self.member.led_before):
            self._steps_down = True
            return {}
        if self.member.state == "joining":
            self.member.found(now)
        led = self.member.lead(inbox, now)
        if led is None:
            return {}
        info = self._leader.next_assignment(led.present, led.absent, led.previous, led.generation)
        info = self.member.conclude(led, info, now)
        if info is not None and info is not led.previous:
            log.info("generation %d: %d members", info.generation.number, len(led.present))
        return {} if info is None else self._messages(info, members)

    def _inbox(self, members: Mapping[str, bytes]) -> Inbox:
        subscriptions = self._reader.read(members)
        known = max([info.known_generation for info in subscriptions.values()], default=NO_GENERATION)
        # Another leader may have given out what no present member follows, or this one without having followed it.
        led_before = self.member.led_before and not self._missed_round
        is_followed = led_before and known <= self._newest_generation
        followed = self._newest
        if not is_followed:
            self._read_newest_assignment()
        newest = max(known, self._newest_generation)
        if newest == NO_GENERATION:
            newest = Generation(self._first_incarnation, 0)
        previous = self._newest
        if previous is not None and followed is not None and known == followed.generation < previous.generation:
            previous = with_places_of(previous, followed, self._topology)
        by_process = self._reader.one_an_address(one_a_process(subscriptions))
        return Inbox(by_process, previous, newest, is_followed)

    @property
    def _newest_generation(self) -> Generation:
        return NO_GENERATION if self._newest is None else self._newest.generation

    def follow(self, assignment: bytes) -> None:
        """Accept the leader's message, if it is newer than the known assignment; leave if it cannot be read."""
        if not assignment:
            self._on_empty_round()
            return
        try:
            self._accept(assignment)
            self._round_is_open = self._missed_round = False
        except UnsupportedVersion as error:
            self._too_old = True
            log.error("%s It leaves the group for %.0f s, serving what it holds.", error, _TOO_OLD_PAUSE_S)
            self.member.end_lease()
        except BaseException:
            self.member.end_lease()
            raise

    def _on_empty_round(self) -> None:
        self._round_is_open = False
        if not self._missed_round:
            self.member.keep()

    def _accept(self, assignment: bytes) -> None:
        named = assignment.removeprefix(_REFERENCE)
        raw = assignment if named == assignment else self._topic.find(named.decode("ascii", "replace"))
        if raw is None:
            raise ChangelogError(f"The assignment that the leader named is not in {self._topic.name!r}.")
        info = AssignmentInfo.decode(raw)
        mine = self._subscription()
        by = info.hosts.get(mine.process_id, mine.host)
        if by != mine.host:
            log.error("%s", superseded(by, mine.host))
        if info.generation > self.member.known:
            self._newest = info
        self.member.follow(info, self._on_assignment)

    def _messages(self, info: AssignmentInfo, members: Mapping[str, bytes]) -> dict[str, bytes]:
        raw = info.encode()
        if info is not self._newest:
            self._topic.write(raw)
        large = len(raw) * len(members) > MAX_INLINE_BYTES
        return dict.fromkeys(members, _REFERENCE + digest(raw).encode() if large else raw)

    def _read_newest_assignment(self) -> None:
        """Read the newest assignment ever written, to start from it if this member leads."""
        found = self._topic.newest()
        if found is not None and (self._newest is None or found.generation > self._newest.generation):
            self._newest = found
