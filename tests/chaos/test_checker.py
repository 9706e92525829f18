"""The checker accepts what is promised, and finds every kind of violation that is planted in a history."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.history import (
    Calm,
    Cut,
    Fault,
    Finding,
    History,
    Item,
    Overload,
    Portion,
    Read,
    Record,
    Scope,
    value_of,
)
from tests.chaos.promises import KINDS

KEY: Item = ("k",)
OTHER: Item = ("m",)
UNBOUNDED: dict[str, int] = {}


def record(offset: int, item: Item, serial: int | None, **changes: Any) -> Record:
    """Record ``offset`` is generated, written and committed within its own second, from 1,000 * (offset + 1)."""
    at = 1000.0 * (offset + 1)
    return replace(Record("counts", 0, offset, item, serial, at, at + 10, at + 20, at + 20), **changes)


# k: 0 → 10, 1 → 11, 3 deleted, 4 → 14. m: 2 → 12. Offset 5 was aborted. All in the first seven seconds.
RECORDS = [
    record(0, KEY, 10),
    record(1, KEY, 11),
    record(2, OTHER, 12),
    record(3, KEY, None),
    record(4, KEY, 14),
    record(5, KEY, 15, committed_ms=None),
]
UP_TO_DATE = Portion(6, "active", "w1", record_lag=0, time_lag_ms=0, age_ms=0)
UNKNOWN = {"record_lag": None, "time_lag_ms": None, "age_ms": None}


def read(
    value: Any, portion: Portion = UP_TO_DATE, item: Item = KEY, at: float = 20_000.0, **changes: Any
) -> Read:
    base = Read(
        reader="r",
        kind="key",
        tier="router",
        target="t",
        store="counts",
        sent_ms=at,
        received_ms=at + 5,
        status=404 if value is None else 200,
        problem="unknown-key" if value is None else "",
        items=((item, value if value is None or isinstance(value, dict) else value_of(item, value)),),
        portions={0: portion},
    )
    return replace(base, **changes)


def listed(*items: Item, scope: Scope | None = None, **changes: Any) -> Read:
    serials = {KEY: 14, OTHER: 12}
    rows = tuple((item, value_of(item, serials.get(item, 1))) for item in items)
    return replace(read(14, scope=scope or Scope(), kind="entries"), items=rows, **changes)


def kinds(*reads: Read, records: list[Record] = RECORDS, calms: tuple[Calm, ...] = ()) -> set[str]:
    return {found.kind for found in check(History(records=records, reads=list(reads), calms=list(calms)))}


@pytest.mark.parametrize(
    "good",
    [
        read(14),
        read(12, item=OTHER),
        read(None, item=("never",)),
        # An old value by a replica that says so.
        read(10, replace(UP_TO_DATE, position=1, record_lag=5, time_lag_ms=18_500, age_ms=18_500)),
        read(10, replace(UP_TO_DATE, position=1, **UNKNOWN)),
        # The position token is an upper bound of what was read.
        read(11, replace(UP_TO_DATE, record_lag=2, time_lag_ms=16_000, age_ms=16_000)),
        # Deleted between the lag and the position.
        read(None, replace(UP_TO_DATE, position=5, **UNKNOWN), at=13_000.0),
        # Within bounds, and the active where only that may answer.
        read(14, bounds={"max_record_lag": 0, "max_time_lag_ms": 0, "max_age_ms": 0}, require_active=True),
        read(14, min_position={0: 6}),
        listed(KEY, OTHER),
        listed(OTHER, KEY, scope=Scope(reverse=True)),
        listed(KEY, scope=Scope(last=KEY)),
        listed(OTHER, scope=Scope(low="l")),
        listed(OTHER, scope=Scope(after=KEY)),
        listed(KEY, scope=Scope(after=OTHER, reverse=True)),
        read(14, status=412, problem="lag-exceeds-tolerance", items=(), portions={}),
        read(14, status=421, problem="not-hosted-here", tier="worker", items=(), portions={}),
    ],
)
def test_what_is_promised_is_no_violation(good):
    assert kinds(good) == set()


def test_a_record_that_is_being_written_may_be_read_or_not():
    for value in (11, 14):
        late = [*RECORDS[:4], record(4, KEY, 14, began_ms=100.0, written_ms=30_000.0, committed_ms=30_000.0)]
        late[4] = replace(late[4], generated_ms=25_000.0)
        portion = replace(UP_TO_DATE, position=5 if value == 14 else 3, record_lag=0)
        shown = read(value, portion, at=3_500.0 if value == 11 else 20_000.0)
        assert kinds(shown, records=late) == set()


def test_a_version_is_read_as_of_a_time():
    versions = [record(0, ("p", 100), 1, store="prices"), record(1, ("p", 200), 2, store="prices")]
    as_of = read(value_of(("p", 100), 1), item=("p",), store="prices", as_of_ms=150)
    assert kinds(as_of, records=versions) == set()
    assert kinds(replace(as_of, as_of_ms=250), records=versions) == {"time-lag-understated"}
    before = read(None, item=("p",), store="prices", as_of_ms=50)
    assert kinds(before, records=versions) == set()
    assert kinds(replace(before, as_of_ms=100), records=versions) == {"silent-miss"}


def test_a_deletion_in_a_list_of_versions_is_one_of_them():
    versions = [record(0, ("p", 100), 1, store="prices"), record(1, ("p", 200), None, store="prices")]
    rows = ((("p", 100), value_of(("p", 100), 1)), (("p", 200), None))
    full = read(14, kind="versions", store="prices", items=rows, scope=Scope(key="p"))
    assert kinds(full, records=versions) == set()
    assert kinds(replace(full, items=rows[:1]), records=versions) == {"short-list"}
    assert kinds(replace(full, items=(*rows, (("p", 300), None))), records=versions) == {"wrong-value"}


STALE = replace(UP_TO_DATE, position=3, record_lag=3, time_lag_ms=18_000, age_ms=18_000)
"""True of a replica at offset 3, which has k = 11."""


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("wrong-value", read(99)),
        ("wrong-value", read(15)),  # aborted
        ("wrong-value", read(12)),  # another item's serial
        ("wrong-value", read(value_of(OTHER, 14))),
        ("wrong-value", read("text")),
        ("beyond-position", read(14, replace(UP_TO_DATE, position=4, **UNKNOWN))),
        ("beyond-position", read(14, replace(UP_TO_DATE, **UNKNOWN), at=4_000.0)),
        ("record-lag-understated", read(11, replace(STALE, record_lag=1), bounds={"max_record_lag": 1})),
        (
            "record-lag-understated",
            read(11, replace(UP_TO_DATE, **UNKNOWN | {"record_lag": 0}), bounds={"max_record_lag": 0}),
        ),
        ("time-lag-understated", read(11, replace(STALE, time_lag_ms=10))),
        ("time-lag-understated", read(11, replace(UP_TO_DATE, age_ms=None))),
        ("age-understated", read(11, replace(STALE, age_ms=10))),
        ("age-understated", read(11, replace(UP_TO_DATE, time_lag_ms=None))),
        ("beyond-bounds", read(11, STALE, bounds={"max_time_lag_ms": 17_000})),
        ("beyond-bounds", read(14, replace(UP_TO_DATE, age_ms=None), bounds={"max_age_ms": 5})),
        ("silent-miss", read(None)),
        ("silent-miss", read(None, item=OTHER)),
        ("short-list", listed(KEY)),
        ("short-list", listed(OTHER, scope=Scope(last=OTHER))),
        ("short-list", listed(scope=Scope(key="k"))),
        ("disordered-list", listed(OTHER, KEY)),
        ("disordered-list", listed(KEY, KEY, OTHER)),
        ("disordered-list", listed(KEY, OTHER, scope=Scope(low="l"))),
        ("disordered-list", listed(KEY, OTHER, scope=Scope(after=KEY))),
        ("short-list", listed(scope=Scope(after=KEY))),
        ("wrong-value", listed(KEY, OTHER, ("never",))),
        ("position-not-reached", read(11, STALE, min_position={0: 5})),
        ("position-not-reached", read(11, replace(UP_TO_DATE, **UNKNOWN), min_position={0: 5})),
        ("not-active", read(14, replace(UP_TO_DATE, role="standby"), require_active=True)),
        ("undocumented-status", read(14, status=500, problem="internal-error")),
        ("undocumented-status", read(14, status=404, problem="unknown-store")),
        ("undocumented-status", read(14, status=421, problem="not-hosted-here")),
    ],
)
def test_a_planted_violation_is_found(kind, bad):
    assert kind in kinds(bad)


def test_a_session_that_goes_back_is_found_through_every_answer():
    old = replace(UP_TO_DATE, position=3, **UNKNOWN)
    new = read(14, at=20_000.0, session="s")
    assert kinds(new, read(11, old, at=21_000.0, session="s")) == {"went-back"}
    assert kinds(new, read(11, old, at=21_000.0, session="t")) == set()
    # Another key of the partition, and a miss after a value.
    assert kinds(
        read(14, at=20_000.0, session="s"), read(None, replace(old, position=2), OTHER, at=21_000.0, session="s")
    ) == {"went-back"}
    assert kinds(
        read(12, item=OTHER, session="s"), read(10, replace(old, position=1), at=21_000.0, session="s")
    ) == {"went-back"}


def test_ambiguous_miss_counts_as_the_earliest_deletion():
    """A miss that several tombstones explain does not make a session go back."""
    twice = [*RECORDS, record(6, KEY, None)]
    missing = read(None, replace(UP_TO_DATE, position=7, **UNKNOWN), session="s")
    later = read(14, replace(UP_TO_DATE, position=6, **UNKNOWN), at=21_000.0, session="s")
    assert kinds(missing, later, records=twice) == set()


def failed(status: int, problem: str, **changes: Any) -> Read:
    return read(14, status=status, problem=problem, items=(), portions={}, **changes)


def test_failed_read_without_a_fault_is_a_violation():
    """A failed read while no fault is active is none where the request's bounds are too narrow."""
    calm = (Calm(15_000.0, 25_000.0),)
    for status, problem in [(0, "ReadTimeout"), (503, "no-replica"), (504, "deadline"), (429, "overloaded")]:
        assert kinds(failed(status, problem), calms=calm) == {"unavailable"}
        assert kinds(failed(status, problem)) == set()
    refused = failed(412, "lag-exceeds-tolerance", bounds={"max_time_lag_ms": 10})
    assert kinds(refused, calms=calm) == set()
    assert kinds(replace(refused, bounds={"max_time_lag_ms": 5_000}), calms=calm) == {"unavailable"}
    old = replace(refused, bounds={"max_age_ms": 5_000})
    assert kinds(old, calms=calm) == set(), "nobody has written since the seventh second"
    written = [*RECORDS, record(6, KEY, 14, committed_ms=19_000.0)]
    assert kinds(old, calms=calm, records=written) == {"unavailable"}
    assert kinds(failed(503, "no-replica", at=24_800.0), calms=calm) == set()
    # A worker may hold nothing, or have been taken away.
    assert kinds(failed(503, "not-ready", tier="worker"), calms=calm) == set()


def test_failed_read_with_a_replica_left_is_a_violation():
    """During a single fault that leaves a replica, reads must succeed."""

    def during(*faults: str, **changes: Any) -> set[str]:
        some = [Fault(kind, "r0", 16_000.0, 22_000.0, 0) for kind in faults]
        calms = [Calm(5_000.0, 15_000.0), Calm(26_000.0, 30_000.0)]
        reads = [failed(503, "no-replica", **changes)]
        return {found.kind for found in check(History(records=RECORDS, reads=reads, faults=some, calms=calms))}

    assert during("kill-worker") == during("freeze-broker", at=24_000.0) == {"unavailable"}
    assert during("freeze-broker", at=22_500.0) == set(), "what was held back may have been compacted"
    assert during("kill-worker", bounds={"max_time_lag_ms": 5_000}) == {"unavailable"}
    assert during("kill-worker", bounds={"max_time_lag_ms": 500}) == set()
    assert during("freeze-broker", bounds={"max_time_lag_ms": 5_000}) == set()
    assert during("kill-worker", "wipe-state") == during("restart-storm") == during() == set()
    assert during("kill-router", target="r1") == {"unavailable"}
    later = Fault("kill-router", "t", 19_000.0, 21_000.0, 1)
    history = History(
        RECORDS, [failed(0, "ConnectError")], [Fault("kill-worker", "r0", 16_000.0, 17_000.0, 0), later]
    )
    history.calms.append(Calm(5_000.0, 15_000.0))
    assert check(history) == []
    assert during("kill-router", target="r0") == set()


def test_an_overloaded_machine_excuses_silence_only():
    """What is answered must be right all the same."""
    fault, calm = Fault("kill-worker", "r0", 16_000.0, 22_000.0, 0), Calm(5_000.0, 15_000.0)
    early, late = Overload(15_500.0, 19_000.0), Overload(19_500.0, 23_000.0)
    unanswered, wrong = failed(504, "deadline", at=20_000.0), read(10, at=20_500.0)

    def found(*overloads: Overload) -> set[str]:
        finding = Finding("not-converged", "after 30 s", 20_000.0)
        history = History(RECORDS, [unanswered, wrong], [fault], [calm], list(overloads), [finding])
        return {violation.kind for violation in check(history)}

    assert found() == found(early) == {"unavailable", "not-converged", "time-lag-understated"}
    assert found(late) == found(early, late) == {"time-lag-understated"}


def test_a_calm_on_an_overloaded_machine_is_none():
    calm, overload = Calm(15_000.0, 25_000.0), Overload(24_000.0, 26_000.0)
    history = History(RECORDS, [failed(504, "deadline")], calms=[calm])
    assert {violation.kind for violation in check(history)} == {"unavailable"}
    assert check(replace(history, overloads=[overload])) == []


def event(serial: int, position: int, at: float) -> Read:
    portion = replace(UP_TO_DATE, position=position, **UNKNOWN)
    return read(serial, portion, kind="change", session="s", at=at, sent_ms=0.0, received_ms=at)


def test_missed_change_without_a_fault_is_a_violation():
    """A stream may miss a change while a fault is active, or where a problem explains it."""
    calm = (Calm(0.0, 30_000.0),)
    ended = failed(0, "ended", kind="change", session="s", at=20_000.0)
    complete = [event(10, 1, 1_100.0), event(11, 2, 2_100.0), event(14, 6, 6_000.0), ended]
    assert kinds(*complete, calms=calm) == set()
    assert kinds(complete[0], ended, calms=calm) == {"missed-change"}
    assert kinds(complete[0], ended) == set()
    # Deleting what does not exist is no change.
    twice = [*RECORDS, record(6, KEY, None), record(7, KEY, None)]
    deleted = replace(read(None, replace(UP_TO_DATE, position=7, **UNKNOWN)), kind="change", session="s")
    deleted = replace(deleted, sent_ms=0.0, received_ms=7_500.0)
    assert kinds(*complete[:-1], deleted, ended, records=twice, calms=calm) == set()
    # It said why it showed nothing.
    problems = [
        failed(412, "lag-exceeds-tolerance", kind="change", session="s", at=at) for at in (2_500.0, 5_500.0)
    ]
    assert kinds(complete[0], *problems, ended, calms=calm) == set()


def test_the_lag_of_an_event_is_judged_while_all_is_calm():
    stale = replace(event(11, 3, 10_000.0), portions={0: replace(STALE, time_lag_ms=10)})
    assert kinds(stale, calms=(Calm(0.0, 30_000.0),)) == {"time-lag-understated"}
    # Else it may have been under way for long.
    assert kinds(stale) == set()


def test_miss_of_unknown_time_lag_is_excused_for_seconds():
    """Only records of the last seconds explain a miss whose answer states no time lag."""
    unknown = replace(UP_TO_DATE, **UNKNOWN)
    assert kinds(read(None, unknown, OTHER, at=12_000.0)) == set()
    assert kinds(read(None, unknown, OTHER, at=20_000.0)) == {"silent-miss"}
    assert kinds(listed(KEY, portions={0: unknown})) == {"short-list"}
    # Deleted ten seconds ago, and written again since.
    assert kinds(read(None, unknown, at=14_500.0)) == set()


def test_cold_replica_states_no_absence():
    """A replica that replays a compacted log is at no point of history, so its miss is a violation."""
    long = [*RECORDS, record(6, OTHER, 16)]
    cold = replace(UP_TO_DATE, **UNKNOWN | {"record_lag": 7})
    assert kinds(read(14, cold), records=long) == set()
    assert kinds(read(None, cold, item=("never",)), records=long) == {"silent-miss"}
    assert kinds(read(None, replace(cold, record_lag=6), item=("never",)), records=long) == set()
    assert kinds(listed(KEY, portions={0: cold}, scope=Scope(key="k")), records=long) == {"short-list"}


def test_what_has_expired_by_the_clock_is_a_miss():
    """A value of 4 s, written at 5,020 at the latest, lives until then for sure, and after 9,020 no more."""
    lasting = [replace(one, store="seen") for one in RECORDS]

    def found(value: Any, at: float, *faults: Fault) -> set[str]:
        portion = replace(UP_TO_DATE, record_lag=0, time_lag_ms=0, age_ms=None)
        history = History(lasting, [read(value, portion, at=at, store="seen")], list(faults))
        return {violation.kind for violation in check(history)}

    assert found(14, 8_990.0) == found(None, 9_010.0) == found(None, 20_000.0) == set()
    assert found(14, 9_030.0) == {"expired-value"}
    assert found(None, 8_990.0) == {"silent-miss"}
    # What a clock that was ahead has made expire stays so, and none but a clock that is wrong brings it back.
    step = Fault("step-clock", "w", 7_000.0, 9_500.0, 0)
    assert found(None, 8_990.0, step) == found(14, 9_030.0, step) == set()
    assert found(14, 9_600.0, step) == {"expired-value"}


def test_a_window_is_listed_within_its_retention():
    """By the newest window below the position, of which the answer may have lacked what its lag names."""
    records = [record(0, ("k", 1_000), 1), record(1, ("k", 5_000), 2), record(2, ("k", 6_000), 3)]
    records = [replace(one, store="moments") for one in records]

    def found(*starts: int, time_lag_ms: int = 0) -> set[str]:
        serials = {1_000: 1, 5_000: 2, 6_000: 3}
        items = tuple((("k", start), value_of(("k", start), serials[start])) for start in starts)
        portion = Portion(3, "active", "w1", None, time_lag_ms, None)
        shown = read(1, portion, store="moments", kind="windows", scope=Scope(key="k"), items=items)
        return kinds(shown, records=records)

    assert found(5_000, 6_000) == set()
    assert found(1_000, 5_000, 6_000) == {"expired-value"}
    assert found(1_000, 5_000, time_lag_ms=17_500) == found(5_000, time_lag_ms=17_500) == set()
    assert found(6_000) == {"short-list"}


@pytest.mark.parametrize("kind", ["process-ended", "outlived", "stack-trace", "not-converged", "held"])
def test_what_the_run_found_is_a_violation(kind):
    assert [found.kind for found in check(History(findings=[Finding(kind, "w1", 1.0)]))] == [kind]


def test_other_findings_are_none():
    assert check(History(findings=[Finding("rebuild", "w1", 1.0)])) == []


def test_every_kind_of_violation_is_planted():
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [kind for kind in KINDS if f'"{kind}"' not in text] == []


def test_a_saved_history_is_judged_as_before(tmp_path):
    history = History(
        records=RECORDS,
        reads=[listed(KEY), read(14)],
        calms=[Calm(0.0, 1.0)],
        findings=[Finding("rebuild", "w", 2.0)],
    )
    history.save(tmp_path / "history.jsonl")
    assert History.load(tmp_path / "history.jsonl") == history


# Offsets from 3 on were lost at 10 s. k: 0 → 10, 1 → 11, 4 → 24 now. m: 2 → 12, 3 → 23 now.
CUT = Cut("counts", 0, 3, 9_000.0, 10_000.0)
GROWN = [*RECORDS, *(record(n, item, 20 + n) for n, item in enumerate([OTHER, KEY, OTHER], 3))]
GROWN[6:] = [
    replace(one, generated_ms=at, began_ms=at, written_ms=at, committed_ms=at)
    for one, at in zip(GROWN[6:], (11_000.0, 12_000.0, 13_000.0), strict=True)
]
AS_IT_WAS = replace(UP_TO_DATE, **UNKNOWN)


def kinds_after_cut(*reads: Read) -> set[str]:
    return {found.kind for found in check(History(records=GROWN, reads=list(reads), cuts=[CUT]))}


def test_a_lost_record_is_not_shown_with_a_lag():
    """Nor what was deleted by one; without a lag the store may be as it was."""
    assert kinds_after_cut(read(14)) == {"wrong-value"}
    assert kinds_after_cut(read(14, replace(AS_IT_WAS, record_lag=100))) == {"wrong-value"}
    assert kinds_after_cut(listed(KEY, scope=Scope(key="k"))) == {"wrong-value"}
    assert kinds_after_cut(read(14, AS_IT_WAS)) == kinds_after_cut(read(14, at=8_000.0)) == set()
    assert kinds_after_cut(read(24), read(25, item=OTHER)) == set()
    # Its lag is as of before.
    dated = replace(AS_IT_WAS, time_lag_ms=12_000)
    assert kinds_after_cut(read(14, dated)) == set()
    assert kinds_after_cut(read(10, dated)) == {"time-lag-understated"}
    assert kinds_after_cut(read(14, replace(dated, record_lag=0))) == {"wrong-value"}
    assert kinds_after_cut(read(14, replace(dated, age_ms=9_000))) == {"wrong-value"}
    assert kinds_after_cut(read(11)) == {"time-lag-understated"}
    # It was under way, or is of a log that did not exist yet.
    assert kinds_after_cut(read(14, sent_ms=8_500.0, received_ms=10_500.0)) == set()
    assert kinds_after_cut(read(24, at=8_000.0)) == {"wrong-value"}
    # It never had it, whatever its lag.
    assert kinds_after_cut(read(15, AS_IT_WAS)) == {"wrong-value"}
    # Not both.
    both = listed(KEY, OTHER, portions={0: AS_IT_WAS})
    assert kinds_after_cut(both) == set()
    mixed = replace(both, items=((KEY, value_of(KEY, 14)), (OTHER, value_of(OTHER, 25))))
    assert kinds_after_cut(mixed) == {"wrong-value"}


def test_a_position_that_was_lost_is_not_reached():
    early, late = read(24, min_position={0: 3}, position_ms=8_000.0), read(24, min_position={0: 5})
    lost = replace(early, min_position={0: 5})
    assert kinds_after_cut(early) == kinds_after_cut(late) == set()
    assert kinds_after_cut(lost) == {"position-not-reached"}
    # Nor where the records that show it are compacted, as they may be on Kafka.
    compacted = check(History(records=GROWN, reads=[lost], cuts=[replace(CUT, shown_ms=1.0)]))
    assert {found.kind for found in compacted} == set()
    # Nobody knows which of two it is without its epoch.
    assert kinds_after_cut(replace(lost, position_ms=None)) == set()
    # By the store as it was it is.
    assert kinds_after_cut(replace(lost, items=read(14).items, portions={0: AS_IT_WAS})) == set()
    refused = failed(409, "position-of-another-log")
    assert kinds_after_cut(refused) == set()
    assert kinds(refused) == kinds_after_cut(replace(refused, store="prices")) == {"undocumented-status"}


def test_what_a_session_has_seen_is_not_forgotten_with_what_was_lost():
    """A stream goes on without."""
    before = read(14, at=8_000.0, session="s")
    after = read(25, item=OTHER, session="s")
    assert kinds_after_cut(before, after) == {"went-back"}
    assert kinds_after_cut(*[replace(one, kind="change") for one in (before, after)]) == set()
    kept = read(12, replace(UP_TO_DATE, position=3, **UNKNOWN), OTHER, at=8_000.0, session="s")
    assert kinds_after_cut(kept, after) == set()
    older = read(10, replace(UP_TO_DATE, position=1, **UNKNOWN), session="s", at=21_000.0)
    assert kinds_after_cut(kept, after, older) == kinds_after_cut(kept, older) == {"went-back"}
    # From what came instead, back to what was lost.
    lost = read(14, AS_IT_WAS, at=21_000.0)
    assert kinds_after_cut(after, lost) == set()
    assert kinds_after_cut(after, replace(lost, session="s")) == {"wrong-value"}


def test_what_a_log_no_longer_begins_with_is_not_shown_with_a_lag():
    """Who has not found that the beginning has moved has the store as it was, and no lag."""
    moved = Cut("counts", 0, math.inf, 9_000.0, 10_000.0, beginning=2)

    def found(*reads: Read) -> set[str]:
        return {one.kind for one in check(History(records=RECORDS, reads=list(reads), cuts=[moved]))}

    first = read(11)
    assert found(first) == {"wrong-value"}
    assert found(replace(first, portions={0: AS_IT_WAS})) == found(read(14)) == set()
