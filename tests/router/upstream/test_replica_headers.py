import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import UnknownKey
from forebay.lag import Lag
from forebay.wire.answers import JSON_HEAD, NO_STORE, ReplicaInfo, lag_head, problem_answer, replica_info_head
from forebay_router.cluster.worker_view import reported_in

FIGURES = st.none() | st.integers(0, 2**40)
SOURCES = st.builds(
    ReplicaInfo,
    st.just(3),
    st.just("AQtoken_-"),
    st.sampled_from(["active", "restoring", "standby"]),
    st.just("[::1]:8080"),
    st.builds(Lag, FIGURES, FIGURES, FIGURES),
)


@settings(derandomize=True, deadline=None)
@given(SOURCES)
def test_a_replica_is_read_off_the_lines_that_name_it(source):
    for head in (
        JSON_HEAD + NO_STORE + replica_info_head(source),
        problem_answer(UnknownKey("No.", retry_after_s=1), source).head,
    ):
        assert reported_in(head) == (source.role, source.lag)


def test_a_lag_of_several_has_no_role():
    assert reported_in(JSON_HEAD + lag_head(Lag(1, None, 2))) == ("", Lag(1, None, 2))


@pytest.mark.parametrize("head", [b"", JSON_HEAD + NO_STORE])
def test_lines_without_figures_tell_nothing(head):
    assert reported_in(head) is None
