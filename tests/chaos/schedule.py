"""The seeded schedule: which faults happen when, alone and together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ON_EVERY_LOG = (
    "kill-worker",
    "stop-worker",
    "kill-leader",
    "stop-leader",
    "kill-router",
    "stop-router",
    "wipe-state",
    "damage-sst",
    "damage-manifest",
    "damage-offsets",
    "refuse-writes",
    "cut-network",
    "delay-network",
    "hold-network",
    "half-open-network",
    "rolling-restart",
    "scale-out",
    "scale-in",
    "restart-storm",
    "change-topology",
    "step-clock",
    "cold-cache",
    "misplace-keys",
)
OF_SQLITE = ("lock-log", "damage-group")
OF_KAFKA = (
    "stop-broker",
    "kill-broker",
    "freeze-broker",
    "cut-broker",
    "delay-broker",
    "hold-broker",
    "move-beginning",
)
OF_KAFKA_ALONE = ("add-partition",)
"""Never together with others: a worker that has no state of the store does not start meanwhile."""
OF_DISKS = ("fill-disk", "read-only-disk")
"""Where disks can be mounted."""
OF_SLOW_DISKS = ("slow-disk",)
"""Where they can be slowed down, too."""
OF_LOG_FILES = ("cut-log",)
"""Where a log is the files of one process or machine."""
OF_SEVERAL_PROCESSES = ("kill-process",) * 4
"""As often as four others: they are what runs with several processes are about."""
MAX_TOGETHER = 3
LATEST_START_S = 2.0
SHORTEST_S, LONGEST_S = 1.5, 5.0


@dataclass(frozen=True)
class PlannedFault:
    """A fault, when it begins within its episode, how long it lasts, and a number that selects its target."""

    kind: str
    start_s: float
    hold_s: float
    target: int


def kinds_for(
    log: str, worker_processes: int = 1, brokers: int = 1, *, disks: bool = True, slow_disks: bool = True
) -> tuple[str, ...]:
    """The kinds of faults that are possible with a log, workers of so many processes, and disks for each."""
    further = (OF_SEVERAL_PROCESSES if worker_processes > 1 else ()) + (OF_DISKS if disks else ())
    further += OF_SLOW_DISKS if disks and slow_disks else ()
    further += OF_LOG_FILES if brokers == 1 else ()
    if log == "sqlite":
        return ON_EVERY_LOG + OF_SQLITE + further
    # Nothing tells which member Kafka's coordinator chose as the leader.
    on_kafka = tuple(kind for kind in ON_EVERY_LOG if not kind.endswith("-leader"))
    return on_kafka + OF_KAFKA + OF_KAFKA_ALONE + further


def episodes(seed: int, kinds: Sequence[str]) -> Iterator[list[PlannedFault]]:
    """Without end: by turns one fault alone, and several together. Each kind comes before any comes again."""
    chooser = random.Random(seed)
    sociable = [kind for kind in kinds if kind not in OF_KAFKA_ALONE]
    alone, together = _decks(chooser, kinds), _decks(chooser, sociable or kinds)
    while True:
        yield [_planned(chooser, next(alone), 0.0)]
        chosen = {next(together) for _ in range(chooser.randint(2, MAX_TOGETHER))}
        yield [_planned(chooser, kind, chooser.uniform(0, LATEST_START_S)) for kind in sorted(chosen)]


def _decks(chooser: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chooser.sample(list(kinds), len(kinds))


def _planned(chooser: random.Random, kind: str, start_s: float) -> PlannedFault:
    return PlannedFault(kind, start_s, chooser.uniform(SHORTEST_S, LONGEST_S), chooser.randrange(1 << 16))
