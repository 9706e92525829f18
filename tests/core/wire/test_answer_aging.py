"""As of when the lag in a worker's answer is right, and what becomes of an answer that waited."""

import json

from forebay.lag import UNLIMITED, Lag, Tolerance
from forebay.wire.answer_aging import IN_TRANSIT_MS, answer_by_now, as_of
from forebay.wire.answers import HttpAnswer, ReplicaInfo, encode_replica_info

SLOW_MS = IN_TRANSIT_MS + 50


def answer(lag: Lag, head: bytes = b"") -> HttpAnswer:
    encoded = encode_replica_info(ReplicaInfo(0, "position", "active", "h:1", lag))
    return HttpAnswer(
        200, encoded.json_head + head, b'{"key":"k","value":{"lag":{"record_lag":9}}%b' % encoded.tail
    )


def test_a_quick_answer_is_as_of_its_arrival():
    assert as_of(answer(Lag(0, 0, 0)), 1_000, 1_000 + IN_TRANSIT_MS) == 1_000 + IN_TRANSIT_MS


def test_a_slow_answer_is_as_of_its_request():
    """Nobody knows how much of the time it took to be received."""
    assert as_of(answer(Lag(0, 0, 0)), 1_000, 1_000 + SLOW_MS) == 1_000


def test_the_time_that_a_worker_waited_does_not_count():
    waited = answer(Lag(0, 0, 0), b"forebay-waited-ms: 5000\r\n")
    assert as_of(waited, 1_000, 6_000 + IN_TRANSIT_MS) == 6_000 + IN_TRANSIT_MS
    assert as_of(waited, 1_000, 6_000 + SLOW_MS) == 6_000


def test_an_answer_that_waited_has_its_lag_by_now():
    aged = answer_by_now(answer(Lag(3, 40, None)), 1_000.5, UNLIMITED, "s")
    assert json.loads(aged.body) == {
        "key": "k",
        "value": {"lag": {"record_lag": 9}},
        "partition": 0,
        "position": "position",
        "role": "active",
        "host": "h:1",
        "lag": {"record_lag": 3, "time_lag_ms": 1_041, "age_ms": None},
    }
    assert dict(aged.headers())[b"forebay-time-lag-ms"] == b"1041"


def test_an_answer_that_left_its_bound_is_refused():
    tolerance = Tolerance(max_time_lag_ms=1_000)
    assert answer_by_now(answer(Lag(3, 40, None)), 960, tolerance, "s").status == 200
    refused = answer_by_now(answer(Lag(3, 40, None)), 961, tolerance, "s")
    assert (refused.status, json.loads(refused.body)["lag"]["time_lag_ms"]) == (412, 1_001)
