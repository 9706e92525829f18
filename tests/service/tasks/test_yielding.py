"""The readers' share of Python's lock while records are applied."""

import pytest

from forebay_worker.tasks.applier_thread import ReaderYield


class Thread:
    """A thread's processor clock, and the pauses that it made."""

    def __init__(self) -> None:
        self.worked_s = 5.0
        self.pauses_s: list[float] = []

    def work_s(self) -> float:
        return self.worked_s


@pytest.fixture
def thread():
    return Thread()


@pytest.fixture
def turn(thread):
    turn = ReaderYield(thread.work_s, thread.pauses_s.append)
    turn.begin()
    return turn


def test_readers_get_twice_the_time_of_each_slice(thread, turn):
    for _ in range(3):
        thread.worked_s += 0.001
        turn.after_slice()
    assert thread.pauses_s == pytest.approx([0.002] * 3)


def test_small_pieces_of_work_are_paused_for_together(thread, turn):
    for _ in range(4):
        thread.worked_s += 0.00011
        turn.after_slice()
    assert thread.pauses_s == pytest.approx([0.00066])


def test_flowing_log_is_polled_every_two_ms_at_most(thread, turn):
    assert turn.pause_before_poll_s() == pytest.approx(0.002)
    thread.worked_s += 0.004
    assert turn.pause_before_poll_s() == pytest.approx(0.008)


def test_work_before_the_turn_does_not_count(thread, turn):
    thread.worked_s += 1.0
    turn.begin()
    turn.after_slice()
    assert thread.pauses_s == []


def test_no_pause_is_long_however_long_the_work_was(thread, turn):
    thread.worked_s += 5.0
    assert turn.pause_before_poll_s() == pytest.approx(0.02)
    turn.after_slice()
    assert thread.pauses_s == pytest.approx([0.02])
