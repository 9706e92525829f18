import random

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.lag import UNLIMITED, Lag, Tolerance
from forebay.routing.candidates import Holder, candidates, equally_good
from forebay.streams_metadata import HostInfo
from forebay_router.cluster.worker_view import WorkerView

FIGURE = st.one_of(st.none(), st.integers(0, 100))
HOLDERS = st.lists(
    st.builds(
        Holder,
        st.builds(HostInfo, st.just("h"), st.integers(1, 30)),
        st.sampled_from(["active", "restoring", "standby"]),
        st.builds(Lag, FIGURE, FIGURE, FIGURE),
        st.booleans(),
        st.booleans(),
        st.integers(0, 9),
        st.none() | st.integers(1, 9),
        near=st.booleans(),
        lagging=st.booleans(),
        own_host=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda holder: holder.host,
)
TOLERANCES = st.builds(Tolerance, FIGURE, FIGURE, FIGURE)


def takes_more(holder: Holder) -> bool:
    return holder.live and not holder.suspect and (holder.window is None or holder.load < holder.window)


def host(port: int) -> HostInfo:
    return HostInfo("h", port)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(holders=HOLDERS, tolerance=TOLERANCES, seed=st.integers(0, 99))
def test_healthy_within_tolerance_precede_others(holders, tolerance, seed):
    """Every replica is a candidate once, and dead ones are last."""
    for prefer in ("active", "any"):
        order = candidates(holders, tolerance, prefer, random.Random(seed))
        assert sorted(order) == sorted(holder.host for holder in holders)
        by_host = {holder.host: holder for holder in holders}
        good = [takes_more(by_host[h]) and tolerance.met_by(by_host[h].lag) for h in order]
        if prefer == "active" and all(holder.lag.record_lag is not None for holder in holders):
            assert good == sorted(good, reverse=True)
        dead = [not by_host[h].live for h in order]
        assert dead == sorted(dead)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(holders=HOLDERS, tolerance=TOLERANCES)
def test_order_is_independent_of_input_order(holders, tolerance):
    assert candidates(holders, tolerance) == candidates(holders[::-1], tolerance)


def test_order_by_role_lag_and_health():
    """Active, lag, unknown lag, recovering, beyond tolerance, suspect, dead."""
    within = Lag(0, 0, 0)
    holders = [
        Holder(host(6), "active", within, live=False),
        Holder(host(5), "active", within, suspect=True),
        Holder(host(4), "standby", Lag(500, 0, 0)),
        Holder(host(8), "active", within, load=2, window=2),
        Holder(host(3), "standby"),
        Holder(host(2), "standby", Lag(9, 0, 0)),
        Holder(host(1), "restoring", Lag(3, 0, 0)),
        Holder(host(7), "active", within),
    ]
    assert [h.port for h in candidates(holders, Tolerance(max_record_lag=10))] == [7, 1, 2, 3, 8, 4, 5, 6]


def test_replica_beyond_its_ceiling_is_not_first():
    """A worker whose own ceiling would reject the read comes after another replica."""
    holders = [
        Holder(host(1), "active", Lag(500, 0, 0), ceiling=Tolerance(max_record_lag=100)),
        Holder(host(2), "standby", Lag(50, 0, 0), ceiling=Tolerance(max_record_lag=100)),
    ]
    for prefer in ("active", "any"):
        assert [h.port for h in candidates(holders, UNLIMITED, prefer, random.Random(0))] == [2, 1]


def test_a_sole_survivor_of_unknown_lag_is_tried():
    assert candidates([Holder(host(1), "standby", live=True)], Tolerance(0, 0, 0)) == (host(1),)


def test_recovering_replica_gets_one_probe():
    """It gets no further reads while others can answer."""

    def order(load: int) -> list[int]:
        probed = Holder(host(1), "active", Lag(0, 0, 0), load=load, window=1)
        return [h.port for h in candidates([probed, Holder(host(2), "standby", Lag(0, 0, 0))], UNLIMITED)]

    assert order(load=0) == [1, 2]
    assert order(load=1) == [2, 1]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(holders=HOLDERS, tolerance=TOLERANCES, seed=st.integers(0, 99))
def test_any_begins_with_one_that_is_as_good_as_the_best(holders, tolerance, seed):
    order = candidates(holders, tolerance, "any", random.Random(seed))
    good = equally_good(holders, tolerance)
    assert set(good) <= {holder.host for holder in holders if takes_more(holder)}
    assert not good or order[0] in good


@settings(max_examples=200, deadline=None, derandomize=True)
@given(holders=HOLDERS, tolerance=TOLERANCES)
def test_prefer_any_leaves_the_rack_only_for_a_better_one(holders, tolerance):
    """Of those that are good, whoever is on the reader's machine comes before its rack, and that before others."""
    good = equally_good([holder._replace(near=False, own_host=False) for holder in holders], tolerance)
    by_distance: dict[int, set[HostInfo]] = {}
    for holder in holders:
        if holder.host in good:
            distance = 0 if holder.own_host else 1 if holder.near else 2
            by_distance.setdefault(distance, set()).add(holder.host)
    assert set(equally_good(holders, tolerance)) == (by_distance[min(by_distance)] if good else set())


def test_prefer_any_spreads_reads_by_load():
    holders = [Holder(host(port), "standby", Lag(0, 0, 0), load=port) for port in (1, 2, 3)]
    chance = random.Random(0)
    firsts = [candidates(holders, UNLIMITED, "any", chance)[0].port for _ in range(300)]
    assert {1, 2} <= set(firsts)
    assert firsts.count(1) > firsts.count(2)


def test_a_standby_precedes_an_active_that_lags():
    """Only where a fresh report shows that it is within what is acceptable for an active."""
    active = Holder(host(1), "active", Lag(50_000, 0, 0), lagging=True)
    current, lagging, unknown = (
        Holder(host(2), "standby", Lag(3, 0, 0)),
        Holder(host(3), "standby", Lag(20_000, 0, 0), lagging=True),
        Holder(host(4), "standby"),
    )
    assert [h.port for h in candidates([active, current, lagging, unknown], UNLIMITED)] == [2, 1, 3, 4]
    assert [h.port for h in candidates([active, lagging, unknown], UNLIMITED)] == [1, 3, 4]
    assert [h.port for h in candidates([active, current], Tolerance(max_record_lag=100_000))] == [2, 1]


def test_a_replica_lags_until_it_has_clearly_recovered():
    """Reads do not flap while a lag swings about the limit."""
    view = WorkerView(host(1), acceptable_recovery_lag=100)
    held = ("counts", 0)
    lagging = []
    for record_lag in (90, 101, 90, 51, 50, 90, 101, None, 90):
        view.replicas[held] = view.report(held, "active", Lag(record_lag, 0, 0), 0.0)
        lagging.append(view.replicas[held].lagging)
    assert lagging == [False, True, True, True, False, False, True, False, False]


def test_active_of_unknown_lag_is_first_without_a_bound():
    holders = [Holder(host(1), "standby", Lag(0, 0, 0)), Holder(host(2), "active")]
    assert [h.port for h in candidates(holders, UNLIMITED)] == [2, 1]
    assert [h.port for h in candidates(holders, Tolerance(max_record_lag=10))] == [1, 2]


def test_prefer_any_stays_in_the_routers_rack():
    near = Holder(host(1), "standby", Lag(3, 0, 0), near=True)
    far = Holder(host(2), "active", Lag(0, 0, 0))
    assert equally_good([near, far], UNLIMITED) == (near.host,)
    assert equally_good([near, far], Tolerance(max_record_lag=2)) == (far.host,)
    assert equally_good([near._replace(live=False), far], UNLIMITED) == (far.host,)


def test_prefer_any_stays_on_the_host_then_in_the_rack():
    own = Holder(host(1), "standby", Lag(3, 0, 0), near=True, own_host=True)
    near = Holder(host(2), "standby", Lag(2, 0, 0), near=True)
    far = Holder(host(3), "active", Lag(0, 0, 0))
    assert equally_good([far, near, own], UNLIMITED) == (own.host,)
    assert equally_good([far, near, own], Tolerance(max_record_lag=2)) == (near.host,)
    assert equally_good([far, near._replace(near=False), own._replace(near=False)], UNLIMITED) == (own.host,)
    assert equally_good([far, near, own._replace(suspect=True)], UNLIMITED) == (near.host,)
