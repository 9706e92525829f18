"""While keys may be in other partitions, an answer that proves anything of their store is a violation."""

import math
from dataclasses import replace
from typing import Any

from tests.chaos.checker import check
from tests.chaos.history import Calm, Cut, Doubt, Fault, History, Portion, Read, Scope
from tests.chaos.test_checker import RECORDS, UNKNOWN, UP_TO_DATE, failed, read

UNPROVEN = replace(UP_TO_DATE, **UNKNOWN)
MISPLACED = Doubt("counts", 8_000.0, 30_000.0, partition=0, begin=6, end=70)
GROWN = Doubt("counts", 8_000.0, math.inf)
ALONE = (Calm(1_000.0, 7_000.0), Fault("misplace-keys", "counts 0", 7_500.0, 30_000.0, 0))


def found(doubt: Doubt, *others: Any, answer: Read) -> set[str]:
    history = History(records=RECORDS, reads=[answer])
    for entry in (doubt, *others):
        history.add(entry)
    return {violation.kind for violation in check(history)}


def test_who_has_a_misplaced_key_proves_nothing():
    assert found(MISPLACED, answer=read(14, UNPROVEN)) == set()
    assert found(MISPLACED, answer=read(14)) == {"doubt-unstated"}
    assert "doubt-unstated" in found(MISPLACED, answer=read(None, UNPROVEN, item=("never",)))
    listed = read(14, UNPROVEN, kind="entries", scope=Scope(key="k"))
    assert found(MISPLACED, answer=listed) == {"doubt-unstated"}


def test_who_has_none_of_them_may_state_a_lag():
    """Before it was applied, after it was deleted, and in a log that has lost it."""
    before = read(14, replace(UP_TO_DATE, position=5, record_lag=1, time_lag_ms=14_000, age_ms=14_000))
    assert found(replace(MISPLACED, end=3), answer=read(14)) == set()
    assert found(MISPLACED, answer=before) == set()
    cut = Cut("counts", 0, 6, 9_000.0, 10_000.0)
    assert found(MISPLACED, cut, answer=read(14)) == set()


def test_routers_tell_the_others():
    """Unless another fault keeps them from knowing."""
    elsewhere = replace(MISPLACED, partition=1)
    assert found(elsewhere, *ALONE, answer=read(14)) == {"doubt-unstated"}
    assert found(elsewhere, answer=read(14)) == set()
    assert found(elsewhere, *ALONE, answer=read(14, at=10_000.0)) == set()
    assert found(elsewhere, *ALONE, answer=read(14, tier="worker")) == set()


def test_each_replica_of_a_topic_that_has_grown_knows():
    late = Portion(6, "active", "w1", record_lag=None, time_lag_ms=11_000, age_ms=None)
    assert found(GROWN, answer=read(14, tier="worker")) == {"doubt-unstated"}
    # Who has not heard of its log since then says so.
    assert found(GROWN, answer=read(14, late)) == set()


def test_a_doubt_has_a_reason():
    refused = failed(503, "partitioner-mismatch")
    assert found(MISPLACED, answer=refused) == set()
    assert found(replace(MISPLACED, store="seen"), answer=refused) == {"undocumented-status"}
    assert found(MISPLACED, answer=replace(refused, sent_ms=70_000.0)) == {"undocumented-status"}
