"""Figures of runs, and the page made from them."""

from dataclasses import replace
from typing import Any

from tests.chaos.history import Fault, Finding, History, Portion, Read, Record, value_of
from tests.chaos.promises import KINDS, Violation
from tests.chaos.report import page
from tests.chaos.result import NO_FAULT, TOGETHER, Result, percentile, result_of
from tests.chaos.sensitivity import LOST, MISSING, OLDER, sensitivity
from tests.chaos.sometimes import unreached

RUN = {"command": "scripts/chaos", "minutes": 1.0, "date": "2026-01-01", "commit": "abc"}
STANDBY = Portion(1, "standby", "w1", 0, 0, 0)


def read(at: float, took: float = 5.0, status: int = 200, **changes: Any) -> Read:
    base = Read("keys", "key", "router", "t", "counts", at, at + took, status, partition=0)
    portions = {changes.get("partition", 0): STANDBY} if status == 200 else {}
    return replace(base, **{"portions": portions, **changes})


KILLED = Fault("kill-worker", "w0", 1_000.0, 3_000.0, 0)
HISTORY = History(
    reads=[
        read(0.0),
        read(1_100.0, status=503, problem="no-replica"),
        read(1_200.0, status=412, problem="lag-exceeds-tolerance", bounds={"max_time_lag_ms": 1}),
        # Another partition was read meanwhile.
        read(1_300.0, partition=1),
        read(2_000.0, took=100.0),
    ],
    faults=[KILLED],
)


def result(history: History = HISTORY, violations: list[Violation] | None = None) -> Result:
    return result_of(history, violations or [], "sqlite", RUN)


def test_a_failed_read_waits_until_its_partition_is_read_again():
    fault = result().faults["kill-worker"]
    assert (fault.times, fault.reads, fault.refused, fault.failed) == (1, 4, 1, 1)
    assert fault.waits_ms == {"1000": 1, "5": 1, "100": 1}
    assert [percentile(fault.waits_ms, share) for share in (0.5, 0.99, 1.0)] == [100, 1000, 1000]
    assert result().faults[NO_FAULT].waits_ms == {"5": 1}


def test_faults_of_one_episode_count_together():
    both = replace(HISTORY, faults=[KILLED, Fault("wipe-state", "w1", 1_500.0, 4_000.0, 0)])
    assert set(result(both).faults) == {TOGETHER, NO_FAULT}


def test_violations_count_towards_the_fault_at_read_start():
    """A violation belongs to the fault that was active when the read began."""
    found = result(violations=[Violation("went-back", "", HISTORY.reads[3]), Violation("stack-trace", "")])
    assert found.faults["kill-worker"].violations == 1
    assert found.violations == {"went-back": 1, "stack-trace": 1}


def test_results_add_up_and_survive_their_file():
    one = result()
    both = Result.from_json(one.to_json()).plus(one)
    assert len(both.runs) == 2
    assert both.reads == {"key": 2 * len(HISTORY.reads)}
    assert both.faults["kill-worker"].waits_ms["1000"] == 2


def test_the_page_names_runs_faults_and_every_kind_of_violation():
    text = page([result()])
    assert "0 violations in 5 reads" in text
    assert "| kill-worker | 1 | 4 | 1 | 1 | 0 | 100 ms | 1,000 ms | 1,000 ms |" in text
    assert [kind for kind in KINDS if f"| {kind} |" not in text] == []
    assert "* a standby answered after the active's death" in text
    assert "* not reached: a hedge won" in text


def test_unreached_states_are_named_if_faults_allow_them():
    """A state that a run's faults could not have caused is not listed as unreached."""
    names = {sometimes.name for sometimes in unreached(HISTORY, "sqlite")}
    assert "a hedge won" in names
    assert "a standby answered after the active's death" not in names
    assert "a store was rebuilt after damage" not in names
    damaged = replace(HISTORY, faults=[replace(KILLED, kind="damage-sst")])
    assert "a store was rebuilt after damage" in {sometimes.name for sometimes in unreached(damaged, "sqlite")}
    rebuilt = replace(damaged, findings=[Finding("rebuild", "w0", 1.0)])
    assert "a store was rebuilt after damage" not in {sometimes.name for sometimes in unreached(rebuilt, "sqlite")}


def test_the_judge_tells_how_much_it_would_have_noticed():
    records = [Record("counts", 0, n, ("k",), n, 10.0 * n, 10.0 * n, 10.0 * n, 10.0 * n) for n in range(3)]
    fresh = Portion(3, "active", "w1", 0, 0, 0)
    shown = read(100.0, items=((("k",), value_of(("k",), 2)),))
    seen = History(records=records, reads=[replace(shown, portions={0: fresh})])
    assert sensitivity(seen) == {OLDER: (1, 1), MISSING: (1, 1), LOST: (0, 0)}
    # A lag as large as the log excludes nothing.
    late = Portion(3, "standby", "w1", 3, 1_000, 1_000)
    assert sensitivity(replace(seen, reads=[replace(shown, portions={0: late})]))[OLDER] == (0, 1)
