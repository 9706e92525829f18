import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_router.cluster.discovery import PollSchedule


def test_few_workers_are_polled_as_often_as_is_set():
    pace = PollSchedule(0.2)
    for _ in range(100):
        pace.spent(0.0005)
    assert pace.pause_s(3) == 0.2


def test_many_workers_or_large_documents_are_polled_less_often():
    pace = PollSchedule(0.2)
    small = pace.pause_s(1_000)
    for _ in range(100):
        pace.spent(0.01)
    assert 0.2 < small < pace.pause_s(1_000)


def test_smaller_documents_restore_the_poll_interval():
    pace = PollSchedule(0.2)
    for reading_s in [0.1] * 50 + [0.0] * 100:
        pace.spent(reading_s)
    assert pace.pause_s(3) == 0.2


@settings(derandomize=True, deadline=None)
@given(
    st.integers(1, 5_000),
    st.floats(0, 0.1),
)
def test_all_polls_together_stay_within_a_twentieth_of_a_core(addresses, reading_s):
    pace = PollSchedule(0.01)
    for _ in range(200):
        pace.spent(reading_s)
    assert addresses * reading_s / pace.pause_s(addresses) <= 0.05


def test_what_was_spent_is_measured_where_reading_fails_too():
    pace = PollSchedule(0.01)
    idle = pace.pause_s(1_000)
    with pytest.raises(json.JSONDecodeError), pace.reading():
        json.loads("[" + "1," * 300_000)
    assert pace.pause_s(1_000) > idle
