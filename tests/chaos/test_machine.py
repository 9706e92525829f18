"""When a machine counts as overloaded, by the kernel's own figure and by a clock."""

import pytest

from tests.chaos.history import History, Overload
from tests.chaos.machine import Machine, waiting_ms


def noted(samples: list[tuple[float, float]]) -> list[Overload]:
    """What is noted after samples of the time, in seconds, and of how long somebody has waited, in seconds."""
    history = History()
    machine = Machine(history.add)
    for now_s, waiting_s in samples:
        machine.sample(1_000 * now_s, 1_000 * waiting_s)
    return history.overloads


@pytest.mark.parametrize(("share", "counts"), [(0.96, True), (0.9, False), (0.3, False)])
def test_somebody_waits_for_three_seconds(share, counts):
    found = noted([(at / 2, share * at / 2) for at in range(7)])
    assert found == ([Overload(-1_000.0, 4_000.0)] if counts else [])


def test_a_burst_of_work_is_no_overload():
    """Such as the start of a process."""
    assert noted([(at / 2, min(at / 2, 2.0)) for at in range(20)]) == []


def test_a_machine_that_stands_still_is_overloaded():
    found = noted([(0.0, 0.0), (0.5, 0.0), (2.5, 0.0), (3.0, 0.0)])
    assert found == [Overload(-500.0, 3_500.0)]


def test_overlapping_overloads_count_once():
    history = History(overloads=[Overload(0.0, 4_000.0), Overload(500.0, 4_500.0), Overload(9_000.0, 10_000.0)])
    assert history.overloaded_s() == 5.5


def test_the_kernels_figure_is_read():
    assert waiting_ms() >= 0.0
