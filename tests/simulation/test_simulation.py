"""Schedules of faults in virtual time: a few of the thousands that ``scripts/simulate`` runs in a minute."""

import pytest

from forebay_worker.group.group_member import Absences
from tests.simulation.promises import PromiseBroken
from tests.simulation.run import LOGS, Schedule, simulate

ONCE_BROKEN = {"sqlite": (24, 104, 129), "kafka": (41, 113, 189)}
"""Seeds that show what was mended: each fails without one of the remedies."""


@pytest.mark.parametrize("log", LOGS)
def test_no_schedule_breaks_a_promise(log):
    outcomes = [simulate(log, seed) for seed in (*range(20), *ONCE_BROKEN[log])]
    faults = sum((outcome.faults for outcome in outcomes), start=type(outcomes[0].faults)())
    assert faults.keys() == {"crash", "stop", "leave", "refuse", "disturb", "forget", "paused leader"}
    assert sum(outcome.failovers for outcome in outcomes) > len(outcomes)
    assert sum(outcome.reads for outcome in outcomes) > 10 * len(outcomes)
    assert sum(outcome.read_failovers for outcome in outcomes) > 0


@pytest.mark.parametrize("log", LOGS)
def test_a_seed_replays_its_schedule(log):
    runs = [Schedule(log, 7) for _ in range(2)]
    first, second = (
        (run.run(), {name: (worker.generation, worker.offsets) for name, worker in run.workers.items()})
        for run in runs
    )
    assert first == second


def test_broken_promise_names_its_replay_command(monkeypatch):
    monkeypatch.setattr(Absences, "expected_back", lambda *_: {})
    with pytest.raises(PromiseBroken, match=r"lost its place .* \(scripts/simulate --log sqlite --seed \d+ --s"):
        list(map(simulate, ["sqlite"] * 20, range(20)))
