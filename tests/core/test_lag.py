import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.clock import boot_ms
from forebay.lag import (
    EMPTY_PROGRESS,
    UNKNOWN_LAG,
    UNLIMITED,
    EndOffset,
    EndOffsets,
    Lag,
    Tolerance,
    lag_of,
    provable,
    worst_lag,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=150)

figures = st.none() | st.integers(0, 5)
lags = st.builds(Lag, figures, figures, figures)
tolerances = st.builds(Tolerance, figures, figures, figures)

observations = st.lists(st.builds(EndOffset, st.integers(0, 400), st.floats(0, 1000, width=32)), max_size=200)
growing_log = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=300)


def unbounded(seen: list[EndOffset], position: int) -> float | None:
    return max((o.sent_boot_ms for o in seen if o.offset <= position), default=None)


@repeatable
@given(observations, st.lists(st.integers(-1, 401), min_size=1, max_size=10))
def test_a_position_is_never_called_current_later_than_it_was(seen: list[EndOffset], positions: list[int]) -> None:
    ends = EndOffsets()
    for index, observation in enumerate(seen):
        ends.observe(observation)
        position = positions[index % len(positions)]
        claimed, truth = ends.last_caught_up(position), unbounded(seen[: index + 1], position)
        assert claimed is None or (truth is not None and claimed <= truth)


transactional_log = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 4)), min_size=1, max_size=300
)


@repeatable
@given(transactional_log)
def test_time_lag_with_transactions_counts_from_all_writes(
    steps: list[tuple[int, bool, int]],
) -> None:
    """Reaching the end counts from the last stable offset."""
    ends, seen = EndOffsets(), []
    written = stable = position = 0
    for sent, (appended, commits, applied) in enumerate(steps):
        written += appended
        stable = written if commits else stable
        position = min(stable, position + applied)
        seen.append(EndOffset(stable, float(sent), written))
        ends.observe(seen[-1])
        reached = max((o.sent_boot_ms for o in seen if o.offset <= position), default=None)
        current = max((o.sent_boot_ms for o in seen if o.written_to <= position), default=None)
        for claimed, truth in ((ends.end_reached(position), reached), (ends.last_caught_up(position), current)):
            assert claimed is None or (truth is not None and claimed <= truth)
        if position == stable:
            assert ends.end_reached(position) == sent
        if position == written:
            assert ends.last_caught_up(position) == sent


def test_transaction_is_open_while_the_end_stands_still() -> None:
    """It is open since the end offset first stood below what was written."""
    ends = EndOffsets()
    for sent, (end, written, since) in enumerate(
        [(5, 5, None), (5, 7, 1.0), (5, 8, 1.0), (9, 10, 3.0), (9, 10, 3.0), (11, 11, None)]
    ):
        ends.observe(EndOffset(end, float(sent), written))
        assert ends.open_since_boot_ms == since


@pytest.mark.parametrize(
    ("end", "offset", "expected"),
    [
        (EndOffset(5, 1.0, 9), 3, EndOffset(5, 1.0, 9)),
        (EndOffset(5, 1.0, 9), 7, EndOffset(7, 1.0, 9)),
        (EndOffset(5, 1.0, 9), 12, EndOffset(12, 1.0)),
        (EndOffset(5, 1.0), 3, EndOffset(5, 1.0)),
        (EndOffset(5, 1.0), 12, EndOffset(12, 1.0)),
    ],
)
def test_an_end_is_never_below_what_was_read(end: EndOffset, offset: int, expected: EndOffset) -> None:
    assert end.at_least(offset) == expected


@repeatable
@given(growing_log)
def test_following_replica_is_caught_up_to_a_passed_end(
    steps: list[tuple[int, int]],
) -> None:
    """While the log grows, a replica was last caught up at an end offset that it has passed."""
    ends, seen = EndOffsets(), []
    end = position = 0
    for sent, (appended, applied) in enumerate(steps):
        end += appended
        position = min(end, position + applied)
        seen.append(EndOffset(end, float(sent)))
        ends.observe(seen[-1])
        claimed, truth = ends.last_caught_up(position), unbounded(seen, position)
        assert (claimed is None) == (truth is None)
        assert claimed is None or (truth is not None and claimed <= truth)
        if position == end:
            assert claimed == sent


@repeatable
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 200))
def test_recent_observations_are_distinguished_exactly(appended: list[int], position: int) -> None:
    ends, seen, end = EndOffsets(), [], 0
    for sent, count in enumerate(appended):
        end += count
        seen.append(EndOffset(end, float(sent)))
        ends.observe(seen[-1])
    assert ends.last_caught_up(position) == unbounded(seen, position)


def test_idle_replica_keeps_its_last_caught_up_time() -> None:
    """Any number of later end offsets does not displace that time."""
    ends = EndOffsets()
    for moment in range(10_000):
        ends.observe(EndOffset(100 + moment, float(moment)))
    assert ends.last_caught_up(100) == 0.0
    assert ends.last_caught_up(10_099) == 9_999.0


def test_memory_for_observations_is_bounded() -> None:
    ends = EndOffsets()
    for moment in range(10_000):
        ends.observe(EndOffset(moment, float(moment)))
        assert len(ends._ring) <= 64


def test_a_late_observation_changes_nothing() -> None:
    ends = EndOffsets()
    ends.observe(EndOffset(10, 100.0))
    ends.observe(EndOffset(5, 50.0))
    assert ends.newest == EndOffset(10, 100.0)
    assert ends.last_caught_up(7) is None


def test_a_replaced_log_leaves_no_observation_behind() -> None:
    ends = EndOffsets()
    ends.observe(EndOffset(10, 100.0))
    ends.clear()
    assert ends.newest is None
    assert ends.last_caught_up(10) is None
    ends.observe(EndOffset(3, 50.0))
    assert ends.last_caught_up(3) == 50.0


@repeatable
@given(tolerances, lags)
def test_a_tolerance_is_met_only_if_every_bound_is_proven(tolerance: Tolerance, lag: Lag) -> None:
    pairs = zip(tolerance, lag, strict=True)
    unmet = [b for b, figure in pairs if b is not None and (figure is None or figure > b)]
    assert tolerance.met_by(lag) == (not unmet)


def test_rejection_names_only_the_unproven_bounds() -> None:
    tolerance = Tolerance(max_record_lag=5, max_time_lag_ms=100, max_age_ms=3_000)
    records, age = map(str, tolerance.unmet_by(Lag(6, 100, None)))
    assert records == "max_record_lag=5: its record_lag is 6"
    assert age.startswith("max_age_ms=3000: its age_ms is unknown, since its writers have sent no heartbeats")


@pytest.mark.parametrize(
    "tolerance",
    [Tolerance(max_record_lag=10**9), Tolerance(max_time_lag_ms=10**9), Tolerance(max_age_ms=10**9)],
)
def test_unknown_lag_meets_no_bound_however_wide(tolerance: Tolerance) -> None:
    assert tolerance != UNLIMITED
    assert not tolerance.met_by(UNKNOWN_LAG)


def test_a_bound_is_inclusive_and_zero_is_a_bound() -> None:
    assert Tolerance(max_record_lag=0) != UNLIMITED
    assert Tolerance(max_record_lag=0).met_by(Lag(0, None, None))
    assert not Tolerance(max_record_lag=0).met_by(Lag(1, 0, 0))


@repeatable
@given(tolerances, tolerances, lags)
def test_what_is_held_to_a_ceiling_is_met_only_where_both_are(
    requested: Tolerance, ceiling: Tolerance, lag: Lag
) -> None:
    assert requested.held_to(ceiling).met_by(lag) == (requested.met_by(lag) and ceiling.met_by(lag))


def test_no_bound_is_met_by_anything() -> None:
    assert Tolerance() == UNLIMITED
    assert UNLIMITED.met_by(UNKNOWN_LAG)


@repeatable
@given(st.lists(lags, max_size=5))
def test_worst_lag_is_taken_figure_by_figure(several: list[Lag]) -> None:
    """A figure is unknown if any lag's is."""
    worst = worst_lag(several)
    for index in range(3):
        column = [lag[index] for lag in several]
        known = [figure for figure in column if figure is not None]
        assert worst[index] == (max(known) if known and None not in column else None)


def test_the_worst_of_two_lags_may_belong_to_neither() -> None:
    assert worst_lag([Lag(1, 20, None), Lag(3, 10, 5)]) == Lag(3, 20, None)
    assert worst_lag([]) == UNKNOWN_LAG


def test_a_lag_shows_its_three_figures_by_name() -> None:
    assert Lag(1, None, 3).document() == {"record_lag": 1, "time_lag_ms": None, "age_ms": 3}


def test_a_replica_that_knows_nothing_claims_nothing() -> None:
    assert lag_of(EMPTY_PROGRESS, boot_ms()) == UNKNOWN_LAG


def test_lag_of_the_same_content_grows_with_time_alone() -> None:
    assert Lag(3, 10, None).aged(1.2) == Lag(3, 12, None)
    assert Lag(None, None, 5).aged(0.0) == Lag(None, None, 5)


def test_observation_beyond_the_content_leaves_what_earlier_ones_have_proven() -> None:
    reached, beyond = EndOffsets(), EndOffsets()
    reached.observe(EndOffset(40, 1000.0))
    beyond.observe(EndOffset(50, 2000.0))
    progress = EMPTY_PROGRESS._replace(position=40, consistent_position=40).observed(reached)
    assert lag_of(progress, 1500.0) == Lag(0, 500, None)
    assert lag_of(progress.observed(beyond), 2500.0) == Lag(10, 1500, None)
    assert progress.observed(beyond).end_reached_boot_ms == 1000.0


def test_record_lag_counts_from_the_consistent_offset() -> None:
    progress = EMPTY_PROGRESS._replace(position=90, applying_to=95, consistent_position=40, end_offset=100)
    assert lag_of(progress, 0.0).record_lag == 60


def test_cold_replica_lags_from_the_log_start() -> None:
    progress = EMPTY_PROGRESS._replace(position=90, beginning=30, end_offset=100)
    assert lag_of(progress, 0.0) == Lag(70, None, None)


def test_a_replica_beyond_the_observed_end_lags_by_nothing() -> None:
    progress = EMPTY_PROGRESS._replace(position=12, consistent_position=12, end_offset=10)
    assert lag_of(progress, 0.0).record_lag == 0


@pytest.mark.parametrize(
    ("since", "now", "elapsed"),
    [
        (100.0, 100.0, 0),
        (100.0, 105.0, 5),
        (100.0, 100.001, 1),
        (100.0, 105.25, 6),
        (100.5, 102.0, 2),
        (100.001, 100.0, None),
        (None, 100.0, None),
    ],
)
def test_elapsed_time_is_rounded_up_and_the_future_is_unknown(
    since: float | None, now: float, elapsed: int | None
) -> None:
    progress = EMPTY_PROGRESS._replace(last_caught_up_boot_ms=since, as_of_boot_ms=since)
    lag = lag_of(progress, now)
    assert (lag.time_lag_ms, lag.age_ms) == (elapsed, elapsed)


@repeatable
@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12))
def test_time_lag_and_age_are_never_understated(last_caught_up: float, as_of: float, now: float) -> None:
    lag = lag_of(EMPTY_PROGRESS._replace(last_caught_up_boot_ms=last_caught_up, as_of_boot_ms=as_of), now)
    for figure, since in ((lag.time_lag_ms, last_caught_up), (lag.age_ms, as_of)):
        if since > now:
            assert figure is None
        else:
            assert figure == math.ceil(now - since)


def test_old_end_offset_proves_no_record_lag() -> None:
    """Time lag and age stay."""
    progress = EMPTY_PROGRESS._replace(end_sent_boot_ms=1000.0)
    lag = Lag(3, 4, 5)
    assert provable(lag, progress, 6000.0) == lag
    assert provable(lag, progress, 6000.1) == Lag(None, 4, 5)
