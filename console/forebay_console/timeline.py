"""What changed between two surveys: assignments, promotions, restores, workers. A pure comparison, and a ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from forebay.wire.answer_schemas.members import Natural
from forebay_web.health.survey import Affected, Condition, StoreSurvey, Surveys

_MAX_EVENTS = 256
_MAX_NAMED = 16


EventKind: TypeAlias = Literal[
    "assignment",
    "promotion",
    "active-lost",
    "unheld",
    "restore-begun",
    "restore-ended",
    "worker-up",
    "worker-down",
]


class TimelineEvent(Struct, frozen=True):
    """Something that changed, as of the survey that noticed it."""

    at_ms: Natural
    kind: EventKind
    detail: str
    store: str | None = None
    partitions: Annotated[tuple[Natural, ...], Meta(description="Those concerned, or the first of them.")] = ()
    host: str | None = None


class Timeline:
    """The newest events, the oldest first."""

    def __init__(self) -> None:
        self._events: deque[TimelineEvent] = deque(maxlen=_MAX_EVENTS)

    def on_survey(self, before: Surveys, now: Surveys) -> None:
        """Add what changed from one survey to the next."""
        self._events.extend(changes_between(before, now))

    def events(self) -> list[TimelineEvent]:
        """All of them."""
        return list(self._events)


def changes_between(before: Surveys, now: Surveys) -> Iterator[TimelineEvent]:
    """What changed; nothing if no store was known before, as when a process starts."""
    if not before.stores:
        return
    at_ms = now.at_epoch_ms
    for host in sorted(before.workers.keys() | now.workers.keys()):
        was, live = before.workers.get(host, False), now.workers.get(host, False)
        if live and not was:
            yield TimelineEvent(at_ms, "worker-up", f"{host} answers.", host=host)
        elif was and not live:
            yield TimelineEvent(at_ms, "worker-down", f"{host} does not answer any more.", host=host)
    if now.generation != before.generation:
        yield TimelineEvent(at_ms, "assignment", f"Generation {now.generation} of the assignment is in force.")
    for name, survey in now.stores.items():
        earlier = before.stores.get(name)
        if earlier is not None:
            yield from _promotions(at_ms, earlier, survey)
            yield from _restores(at_ms, earlier, survey)


def _promotions(at_ms: int, before: StoreSurvey, now: StoreSurvey) -> Iterator[TimelineEvent]:
    """One event for all partitions of a store that went the same way."""
    moved: dict[tuple[EventKind, str | None], list[int]] = {}
    for partition, first in now.firsts.items():
        earlier = before.firsts.get(partition)
        if first == earlier:
            continue
        if first is None:
            moved.setdefault(("unheld", None), []).append(partition)
        elif first[1] == "active":
            moved.setdefault(("promotion", first[0]), []).append(partition)
        elif earlier is not None and earlier[1] == "active":
            moved.setdefault(("active-lost", earlier[0]), []).append(partition)
    for (kind, host), partitions in moved.items():
        named = tuple(partitions[:_MAX_NAMED])
        yield TimelineEvent(at_ms, kind, _detail(kind, now.store, partitions, host), now.store, named, host)


def _detail(kind: str, store: str, partitions: list[int], host: str | None) -> str:
    which = (
        f"{store}: partition {partitions[0]}" if len(partitions) == 1 else f"{store}: {len(partitions)} partitions"
    )
    match kind:
        case "promotion":
            return f"{which} active on {host}."
        case "active-lost":
            return f"{which} without the active on {host}; other replicas answer."
    return f"{which} held by no worker that answers."


def _restores(at_ms: int, before: StoreSurvey, now: StoreSurvey) -> Iterator[TimelineEvent]:
    earlier, current = _by_place(before.restores), _by_place(now.restores)
    for place in current.keys() - earlier.keys():
        partition, host = place
        left = current[place].replica.restore_seconds_left
        about = "" if left is None else f", about {left} s left"
        detail = f"{now.store}: restore of partition {partition} on {host} has begun{about}."
        yield TimelineEvent(at_ms, "restore-begun", detail, now.store, (partition,), host)
    for partition, host in earlier.keys() - current.keys():
        if now.conditions[Condition.UNHELD] == 0 or now.firsts.get(partition) is not None:
            detail = f"{now.store}: restore of partition {partition} on {host} has ended."
            yield TimelineEvent(at_ms, "restore-ended", detail, now.store, (partition,), host)


def _by_place(restores: list[Affected]) -> dict[tuple[int, str], Affected]:
    return {(restore.partition, restore.replica.host): restore for restore in restores}
