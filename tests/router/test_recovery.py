from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_router.recovery import Recovery


def test_a_worker_that_was_never_lost_has_no_bound():
    recovery = Recovery()
    recovery.answered()
    assert recovery.window is None


def test_after_a_loss_there_is_one_probe_then_one_more_with_each_answer_then_no_bound():
    recovery = Recovery()
    recovery.lose()
    windows = []
    while recovery.window is not None:
        windows.append(recovery.window)
        recovery.answered()
    assert windows == list(range(1, 65))


@settings(derandomize=True, deadline=None)
@given(st.lists(st.booleans(), max_size=200))
def test_nothing_but_answers_since_the_last_loss_counts(answers):
    recovery = Recovery()
    recovery.lose()
    for answered in answers:
        recovery.answered() if answered else recovery.lose()
    since = answers[::-1].index(False) if False in answers else len(answers)
    assert recovery.window == (None if since >= 64 else since + 1)
