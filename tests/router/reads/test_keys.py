import json

import pytest

from forebay.errors import DeadlineExceeded, LagExceedsTolerance, NoReplica, Overloaded, UnknownKey
from forebay.lag import Lag
from forebay.position import Position, decode_position, encode_position, log_digest
from forebay.store_spec import StoreSpec
from forebay.wire.answers import HttpAnswer, ReplicaInfo, problem_answer, provenance_members
from forebay_router.reads.keys import verdict
from forebay_router.reads.replica_request import TimedAnswer

SPEC = StoreSpec("s", "key-value", "string", "json", "unknown", "t", 3)
NOW = 10_000.0
HIT = HttpAnswer(200, b"", b"{}")
LOST, LATE, FULL, BEHIND = (
    problem_answer(kind("No.")) for kind in (NoReplica, DeadlineExceeded, Overloaded, LagExceedsTolerance)
)


def miss(partition: int, lag: Lag, log: str = "log") -> HttpAnswer:
    token = encode_position(Position(log_digest(log), {partition: 10 + partition}))
    source = ReplicaInfo(partition, token, "active", "h:1", lag)
    return problem_answer(UnknownKey("No such key.", key="k", **provenance_members(source)), source)


def arrived(*answers: HttpAnswer) -> list[TimedAnswer]:
    return [TimedAnswer(answer, NOW) for answer in answers]


@pytest.fixture(autouse=True)
def now(monkeypatch):
    monkeypatch.setattr("forebay_router.reads.keys.boot_ms", lambda: NOW)


MISS = miss(0, Lag(0, 0, 0))


@pytest.mark.parametrize(
    ("answers", "reported"),
    [
        ([MISS, BEHIND, LOST, HIT], HIT),
        ([BEHIND, MISS, LATE, LOST, FULL], LOST),
        ([BEHIND, FULL, LATE, MISS], LATE),
        ([BEHIND, FULL, MISS], FULL),
        ([MISS, BEHIND], BEHIND),
    ],
)
def test_a_hit_settles_it_and_a_miss_needs_every_partition(answers, reported):
    assert verdict(SPEC, arrived(*answers)) is reported
    assert verdict(SPEC, arrived(*answers[::-1])) is reported


def test_a_miss_has_the_worst_figures_and_the_position_of_all():
    answer = verdict(SPEC, arrived(miss(1, Lag(5, None, 3)), miss(0, Lag(1, 2, 9)), miss(2, Lag(0, 0, 0))))
    problem = json.loads(answer.body)
    assert answer.status == 404
    assert problem["lag"] == {"record_lag": 5, "time_lag_ms": None, "age_ms": 9}
    assert decode_position(problem["position"]).offsets == {0: 10, 1: 11, 2: 12}
    headers = dict(answer.headers())
    assert (headers[b"forebay-record-lag"], headers[b"forebay-age-ms"]) == (b"5", b"9")
    assert b"forebay-time-lag-ms" not in headers


def test_a_miss_of_partitions_whose_logs_differ_has_no_position():
    answer = verdict(SPEC, arrived(miss(0, Lag(0, 0, 0)), miss(1, Lag(0, 0, 0), "another")))
    assert json.loads(answer.body)["position"] is None
    assert b"forebay-position" not in dict(answer.headers())


def test_a_miss_is_as_old_as_its_first_partitions_answer():
    answers = [TimedAnswer(miss(0, Lag(0, 5, 7)), NOW - 2_000), TimedAnswer(miss(1, Lag(0, 9, 9)), NOW)]
    problem = json.loads(verdict(SPEC, answers).body)
    assert problem["lag"] == {"record_lag": 0, "time_lag_ms": 2_005, "age_ms": 2_007}
