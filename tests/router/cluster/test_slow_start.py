from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_router.cluster.worker_view import SlowStart


def test_a_worker_that_was_never_lost_has_no_bound():
    slow_start = SlowStart()
    slow_start.answered()
    assert slow_start.window is None


def test_window_grows_with_each_answer_after_a_loss():
    """It begins with one probe and ends without a bound."""
    slow_start = SlowStart()
    slow_start.lose()
    windows = []
    while slow_start.window is not None:
        windows.append(slow_start.window)
        slow_start.answered()
    assert windows == list(range(1, 65))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.booleans(), max_size=200))
def test_nothing_but_answers_since_the_last_loss_counts(answers):
    slow_start = SlowStart()
    slow_start.lose()
    for answered in answers:
        slow_start.answered() if answered else slow_start.lose()
    since = answers[::-1].index(False) if False in answers else len(answers)
    assert slow_start.window == (None if since >= 64 else since + 1)
