"""Kafka's group coordinator as far as its members can tell: it collects joins, names a leader, passes messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.simulation.scheduler import Scheduler

Status = Literal["ok", "rebalance", "unknown"]


@dataclass
class _Member:
    subscription: bytes
    expires: float
    joined: Callable[[int, bool, Mapping[str, bytes]], None] | None = None
    """Answers its join, while that waits."""
    synced: Callable[[bytes | None], None] | None = None
    """Answers its sync, while that waits; with None, it must join again."""


class Coordinator:
    """One group; members are called by the ids that they were given."""

    def __init__(self, scheduler: Scheduler, session_timeout_ms: float) -> None:
        self._scheduler = scheduler
        self._session_ms = session_timeout_ms
        self._members: dict[str, _Member] = {}
        self._phase: Literal["stable", "joining", "syncing"] = "stable"
        self._generation = 0
        self._leader: str | None = None
        self._messages: Mapping[str, bytes] = {}

    def join(
        self, name: str, subscription: bytes, answer: Callable[[int, bool, Mapping[str, bytes]], None]
    ) -> None:
        """Answer once all have joined, with the generation, whether it leads, and all subscriptions."""
        member = self._members.setdefault(name, _Member(subscription, 0.0))
        member.subscription, member.joined = subscription, answer
        self._keep(name)
        self._begin_rebalance()
        self._complete_joins()

    def sync(
        self,
        name: str,
        generation: int,
        messages: Mapping[str, bytes] | None,
        answer: Callable[[bytes | None], None],
    ) -> None:
        """Answer with the leader's message to this member; the leader brings them all."""
        if name not in self._members or generation != self._generation or self._phase == "joining":
            answer(None)
            return
        self._keep(name)
        self._members[name].synced = answer
        if messages is not None and self._phase == "syncing":
            self._messages, self._phase = messages, "stable"
        if self._phase == "stable":
            self._complete_syncs()

    def heartbeat(self, name: str, generation: int) -> Status:
        """Keep a member; it may have to join again."""
        if name not in self._members or (generation != self._generation and self._phase != "joining"):
            return "unknown"
        self._keep(name)
        return "rebalance" if self._phase == "joining" else "ok"

    def leave(self, name: str) -> None:
        """A member is gone, or has not been heard of for too long."""
        if self._members.pop(name, None) is not None:
            self._leader = None if self._leader == name else self._leader
            self._begin_rebalance()
            self._complete_joins()

    def _keep(self, name: str) -> None:
        self._members[name].expires = self._scheduler.now + self._session_ms
        self._scheduler.after(self._session_ms, lambda: self._expire(name))

    def _expire(self, name: str) -> None:
        member = self._members.get(name)
        if member is None or self._scheduler.now < member.expires:
            return
        # One that waits for an answer is there.
        if member.joined is None and member.synced is None:
            self.leave(name)

    def _begin_rebalance(self) -> None:
        if self._phase == "joining":
            return
        self._phase = "joining"
        for name in self._members:
            self._answer_sync(name, None)

    def _complete_joins(self) -> None:
        if self._phase != "joining" or not self._members:
            return
        if any(member.joined is None for member in self._members.values()):
            return
        self._generation += 1
        self._phase, self._messages = "syncing", {}
        self._leader = self._leader or next(iter(self._members))
        subscriptions = {name: member.subscription for name, member in self._members.items()}
        for name, member in self._members.items():
            joined, member.joined = member.joined, None
            assert joined is not None
            self._keep(name)
            leads = name == self._leader
            joined(self._generation, leads, subscriptions if leads else {})

    def _complete_syncs(self) -> None:
        for name in self._members:
            self._answer_sync(name, self._messages.get(name, b""))

    def _answer_sync(self, name: str, message: bytes | None) -> None:
        member = self._members[name]
        synced, member.synced = member.synced, None
        if synced is not None:
            self._keep(name)
            synced(message)
