"""Reads whose workers and clock are scripted: any order of events keeps what the policy promises."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.routing.failover_policy import (
    Action,
    Ask,
    AttemptOutcome,
    Finish,
    GiveUp,
    NoteSlow,
    NoteThrottled,
    ReadPolicy,
    Refresh,
    Skip,
    Wait,
)

DELAY_MS = 20.0
DEADLINE_MS = 1_000.0


@dataclass
class Known:
    """Replicas as a driver knows them."""

    hosts: list[str]
    full: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    hedges_left: int = 10
    hedges: int = 0
    generation: int = 0

    def candidates(self) -> list[str]:
        return list(self.hosts)

    def is_full(self, host: str) -> bool:
        return host in self.full

    def is_healthy(self, host: str) -> bool:
        return host not in self.hung

    def hedge_delay_ms(self) -> float:
        return DELAY_MS

    def spend_hedge(self) -> bool:
        if self.hedges_left == 0:
            return False
        self.hedges_left -= 1
        self.hedges += 1
        return True


def requested(actions: list[Action[str]]) -> list[str]:
    return [action.host for action in actions if isinstance(action, Ask)]


def test_the_best_is_tried_and_its_answer_ends_the_read():
    policy = ReadPolicy(Known(["a", "b"]), DEADLINE_MS)
    assert policy.begin(0) == [Ask("a", True, False), Wait(DELAY_MS)]
    assert policy.settle([("a", AttemptOutcome.FINAL)], 5) == [Finish("a", False)]


def test_a_fail_over_is_free_and_immediate():
    policy = ReadPolicy(Known(["a", "b"], hedges_left=0), DEADLINE_MS)
    policy.begin(0)
    assert requested(policy.settle([("a", AttemptOutcome.FAILED)], 1)) == ["b"]
    assert policy.settle([("b", AttemptOutcome.REFUSED)], 2) == [Refresh()]
    assert policy.refreshed(3) == [GiveUp("unanswered")]


def test_a_silent_worker_costs_the_hedge_delay():
    known = Known(["a", "b"])
    policy = ReadPolicy(known, DEADLINE_MS)
    policy.begin(0)
    hedge = policy.tick(DELAY_MS)
    assert hedge[:-1] == [NoteSlow("a"), Ask("b", True, True)]
    assert policy.settle([("b", AttemptOutcome.FINAL)], DELAY_MS + 1) == [Finish("b", True)]
    assert known.hedges == 1


def test_failover_does_not_wait_for_other_attempts():
    policy = ReadPolicy(Known(["a", "b", "c"], hedges_left=1), DEADLINE_MS)
    policy.begin(0)
    policy.tick(DELAY_MS)
    assert requested(policy.settle([("b", AttemptOutcome.FAILED)], DELAY_MS + 1)) == ["c"]


def test_throttled_read_waits_until_its_worker_hangs():
    """Without hedge budget the next worker gets the read once the first one is known to hang."""
    known = Known(["a", "b"], hedges_left=0)
    policy = ReadPolicy(known, DEADLINE_MS)
    policy.begin(0)
    assert policy.tick(DELAY_MS) == [NoteSlow("a"), NoteThrottled(), Wait(DELAY_MS + 50)]
    assert requested(policy.tick(DELAY_MS + 50)) == []
    known.hung.add("a")
    assert policy.tick(DELAY_MS + 100)[:-1] == [Ask("b", True, False)]


def test_promoted_worker_is_tried_while_the_last_hangs():
    known = Known(["a"], hung={"a"})
    policy = ReadPolicy(known, DEADLINE_MS)
    policy.begin(0)
    assert policy.tick(250) == [Wait(500)]
    known.hosts.append("b")
    assert requested(policy.tick(500)) == ["b"]


def test_unresponsive_sole_worker_refreshes_candidates():
    """A worker that does not answer for one key is given up for one that the next map names."""
    known = Known(["a"])
    policy = ReadPolicy(known, DEADLINE_MS)
    policy.resume("a", 0)
    assert policy.tick(DELAY_MS) == [NoteSlow("a"), Wait(DELAY_MS + 50)]
    known.hosts.append("b")
    assert requested(policy.tick(DELAY_MS + 50)) == ["b"]


def test_a_newer_map_makes_one_that_refused_a_candidate_again():
    known = Known(["a"])
    policy = ReadPolicy(known, DEADLINE_MS)
    policy.begin(0)
    assert policy.settle([("a", AttemptOutcome.REFUSED)], 1) == [Refresh()]
    known.generation += 1
    assert requested(policy.refreshed(2)) == ["a"]


def test_replicas_wait_only_once_none_can_answer_at_once():
    policy = ReadPolicy(Known(["a", "b", "c"]), DEADLINE_MS, wait_ms=500, asks_before_waiting=True)
    assert policy.begin(0)[0] == Ask("a", False, False)
    assert policy.settle([("a", AttemptOutcome.NOT_YET)], 1)[0] == Ask("b", False, False)
    assert policy.settle([("b", AttemptOutcome.FAILED)], 2)[0] == Ask("c", False, False)
    *again, step = policy.settle([("c", AttemptOutcome.NOT_YET)], 3)
    assert again == [Ask("a", True, False), Ask("c", True, False)]
    assert step == Wait(253)
    # They were told that they may take this long.
    assert requested(policy.tick(253)) == []


def test_after_an_overloaded_worker_each_other_costs_a_hedge():
    known = Known(["a", "b", "c"], hedges_left=2)
    policy = ReadPolicy(known, DEADLINE_MS)
    policy.begin(0)
    assert requested(policy.settle([("a", AttemptOutcome.OVERLOADED)], 1)) == ["b"]
    assert requested(policy.settle([("b", AttemptOutcome.OVERLOADED)], 2)) == ["c"]
    assert known.hedges == 2
    # The first refusal is the answer, with its pause.
    assert policy.settle([("c", AttemptOutcome.OVERLOADED)], 3) == [Finish("a", False)]


def test_without_a_budget_the_first_overloaded_worker_is_the_answer():
    policy = ReadPolicy(Known(["a", "b", "c"], hedges_left=0), DEADLINE_MS)
    policy.begin(0)
    assert policy.settle([("a", AttemptOutcome.OVERLOADED)], 1) == [Finish("a", False)]


def test_full_workers_are_skipped_and_named_as_the_reason():
    policy = ReadPolicy(Known(["a", "b"], full={"a", "b"}), DEADLINE_MS)
    assert policy.begin(0) == [Skip("a"), Skip("b"), GiveUp("overloaded")]
    hung = ReadPolicy(Known(["a"], full={"a"}, hung={"a"}), DEADLINE_MS)
    assert hung.begin(0) == [Skip("a"), GiveUp("unanswered")]


def test_an_answer_after_the_deadline_is_none():
    policy = ReadPolicy(Known(["a", "b"]), DEADLINE_MS)
    policy.begin(0)
    assert policy.settle([("a", AttemptOutcome.FINAL)], DEADLINE_MS + 1) == [GiveUp("late")]


def test_a_request_that_was_not_sent_is_sent_again():
    policy = ReadPolicy(Known(["a", "b"]), DEADLINE_MS)
    policy.resume("a", 0)
    assert requested(policy.settle([("a", AttemptOutcome.UNSENT)], 1)) == ["a"]
    gone = ReadPolicy(known := Known(["a", "b"]), DEADLINE_MS)
    gone.resume("a", 0)
    known.hosts.remove("a")
    assert requested(gone.settle([("a", AttemptOutcome.UNSENT)], 1)) == ["b"]
    assert requested(policy.settle([("a", AttemptOutcome.FAILED)], 2)) == ["b"]


def test_resumed_read_hedges_at_once_past_the_delay():
    """Its worker has been unresponsive since before the read was resumed."""
    policy = ReadPolicy(Known(["a", "b"]), DEADLINE_MS)
    policy.resume("a", 0)
    assert requested(policy.tick(DELAY_MS)) == ["b"]
    assert policy.settle([("a", AttemptOutcome.FINAL)], DELAY_MS + 1) == [Finish("a", False)]


HOSTS = list("abcde")
BEHAVIOURS = st.fixed_dictionaries(
    {
        host: st.tuples(
            st.sampled_from(
                [
                    AttemptOutcome.FINAL,
                    AttemptOutcome.NOT_YET,
                    AttemptOutcome.OVERLOADED,
                    AttemptOutcome.REFUSED,
                    AttemptOutcome.FAILED,
                ]
            ),
            st.sampled_from([0.0, 1.0, 15.0, 60.0, 300.0, 5_000.0]),
        )
        for host in HOSTS
    }
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    behaviours=BEHAVIOURS,
    hosts=st.permutations(HOSTS).flatmap(lambda order: st.integers(0, 5).map(lambda most: order[:most])),
    full=st.sets(st.sampled_from(HOSTS), max_size=2),
    hung=st.sets(st.sampled_from(HOSTS), max_size=2),
    budget=st.integers(0, 3),
    waits=st.booleans(),
)
def test_whatever_happens(behaviours, hosts, full, hung, budget, waits):
    """A read driven by a virtual clock keeps its budget, asks everyone once, and ends in time."""
    known = Known(hosts, full, hung, budget)
    policy = ReadPolicy(known, DEADLINE_MS, wait_ms=200 if waits else 0, asks_before_waiting=waits)
    now, due, requests, first_final = 0.0, {}, [], None
    actions = policy.begin(now)
    while True:
        *earlier, step = actions
        assert not any(isinstance(action, Wait | Refresh | Finish | GiveUp) for action in earlier)
        for action in earlier:
            if isinstance(action, Ask):
                assert action.host in set(hosts) - full - due.keys()
                requests.append((action.host, action.lets_wait))
                due[action.host] = now + behaviours[action.host][1]
        if isinstance(step, Finish | GiveUp):
            break
        if isinstance(step, Refresh):
            assert not due
            actions = policy.refreshed(now)
            continue
        assert due, "it waits for nobody"
        assert now <= step.until_ms <= DEADLINE_MS
        next_ms = min(due.values())
        if next_ms > step.until_ms:
            now = step.until_ms
            actions = policy.tick(now)
            continue
        now = max(now, next_ms)
        settled = [host for host, at in due.items() if at <= now]
        for host in settled:
            del due[host]
        outcomes = [(host, behaviours[host][0]) for host in settled]
        first_final = next((host for host, outcome in outcomes if outcome is AttemptOutcome.FINAL), None)
        actions = policy.settle(outcomes, now)
        if first_final is not None:
            assert actions == [Finish(first_final, actions[0].is_hedge)], "the first final answer wins"
    assert now <= DEADLINE_MS
    assert known.hedges <= budget
    assert len(requests) == len(set(requests)), "somebody was asked twice for the same"
    if isinstance(step, GiveUp) and step.reason == "unanswered":
        others = set(hosts) - full
        assert {host for host, _ in requests} == others, "somebody was not asked"
    if first_final is None and isinstance(step, Finish):
        assert behaviours[step.host][0] is AttemptOutcome.OVERLOADED


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([1.0, 10.0, 5_000.0]), min_size=2, max_size=5))
def test_silent_workers_cost_at_most_the_hedge_delay_each(times):
    """With budget, an answer is there within a hedge delay for each silent worker before the first quick one."""
    hosts = HOSTS[: len(times)]
    policy = ReadPolicy(Known(hosts), 100_000.0)
    now, due = 0.0, {}
    actions = policy.begin(now)
    while not isinstance(actions[-1], Finish):
        for host in requested(actions):
            due[host] = now + times[HOSTS.index(host)]
        step = actions[-1]
        assert isinstance(step, Wait)
        host, at = min(due.items(), key=lambda each: each[1])
        if at <= step.until_ms:
            now = at
            actions = policy.settle([(host, AttemptOutcome.FINAL)], now)
        else:
            now = step.until_ms
            actions = policy.tick(now)
    quick = next((place for place, time_ms in enumerate(times) if time_ms < DELAY_MS), None)
    if quick is not None:
        assert now <= quick * DELAY_MS + times[quick]
