"""A writer is silent once its heartbeats stay away for longer than its store accepts."""

from dataclasses import replace

import pytest

from forebay.lag import Lag
from forebay_web.health.survey import silent_writers
from tests.support.running_query import store

SPEC, NOW_MS = store(), 10_000_000
FOLLOWING = Lag(0, 10, None)


@pytest.mark.parametrize(("away_ms", "is_silent"), [(0, False), (120_000, False), (120_001, True)])
def test_writer_is_silent_after_two_minutes(away_ms, is_silent):
    beats = {"b": NOW_MS, "a": NOW_MS - away_ms}
    expected = {"a": NOW_MS - away_ms} if is_silent else {}
    assert silent_writers(SPEC, beats, FOLLOWING, NOW_MS) == expected


def test_store_may_accept_more():
    beats = {"a": NOW_MS - 500_000}
    assert silent_writers(replace(SPEC, max_age_ms=500_000), beats, FOLLOWING, NOW_MS) == {}
    assert silent_writers(replace(SPEC, max_age_ms=1_000), beats, FOLLOWING, NOW_MS)


@pytest.mark.parametrize("lag", [Lag(0, None, None), Lag(9, 30_001, None)])
def test_replica_that_is_behind_its_log_knows_nothing_of_writers(lag):
    assert silent_writers(SPEC, {"a": 0}, lag, NOW_MS) == {}
