"""How long an obstacle has to last, and to be gone."""

import pytest

from forebay_worker.group.standing import Obstruction, Standing

WRITE_OFF_MS = 60_000.0


@pytest.fixture
def obstruction() -> Obstruction:
    return Obstruction(WRITE_OFF_MS)


def test_a_worker_without_an_obstacle_is_fit_even_right_after_boot(obstruction):
    assert obstruction.standing(None, 5.0) is Standing.FIT


def test_an_obstacle_counts_at_once_and_after_the_delay_the_worker_is_written_off(obstruction):
    assert obstruction.standing("full", 1_000) is Standing.OBSTRUCTED
    assert obstruction.standing("full", 1_000 + WRITE_OFF_MS - 1) is Standing.OBSTRUCTED
    assert obstruction.standing("full", 1_000 + WRITE_OFF_MS) is Standing.WRITTEN_OFF


def test_an_obstacle_that_is_gone_for_a_moment_between_two_tries_is_not_over(obstruction):
    obstruction.standing("full", 1_000)
    assert obstruction.standing(None, 10_000) is Standing.OBSTRUCTED
    assert obstruction.standing("full", 10_500) is Standing.OBSTRUCTED
    assert obstruction.standing(None, 1_000 + WRITE_OFF_MS) is Standing.FIT


def test_what_comes_back_later_is_counted_from_then_on(obstruction):
    obstruction.standing("full", 1_000)
    assert obstruction.standing(None, 11_000) is Standing.FIT
    assert obstruction.standing("full", 1_000 + WRITE_OFF_MS) is Standing.OBSTRUCTED
