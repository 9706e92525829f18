"""The problem that sums up why no replica answered."""

import json

import pytest

from forebay.errors import LagExceedsTolerance, LogDiverged, NotActive, NotReady, PartitionerMismatch, Problem
from forebay.lag import Lag
from forebay.streams_metadata import HostInfo
from forebay.wire.answers import HttpAnswer, ReplicaInfo, problem_answer, provenance_members
from forebay_router.reads.refusals import Attempt, nothing_read, refusal

NEAR, FAR, DOWN = (HostInfo(name, 1) for name in ("near", "far", "down"))


def attempt(host: HostInfo, problem: Problem, lag: Lag) -> Attempt:
    source = ReplicaInfo(0, "position", "standby", str(host), lag)
    problem.members = {**problem.members, **provenance_members(source)}
    return Attempt(host, "answered", problem_answer(problem, source))


def beyond(host: HostInfo, lag: Lag) -> Attempt:
    return attempt(host, LagExceedsTolerance("beyond"), lag)


def document(answer: HttpAnswer) -> dict[str, object]:
    found: dict[str, object] = json.loads(answer.body)
    assert found["status"] == answer.status
    return found


@pytest.mark.parametrize("order", [1, -1])
def test_the_refusal_of_the_replica_least_behind_is_passed_on(order):
    attempts = [
        beyond(FAR, Lag(900, 10, 10)),
        beyond(NEAR, Lag(6, 90, 90)),
        Attempt(DOWN, "ConnectionRefusedError"),
    ]
    answer = refusal("s", 0, attempts[::order])
    assert document(answer)["lag"] == {"record_lag": 6, "time_lag_ms": 90, "age_ms": 90}
    assert answer.status == 412
    assert b"retry-after: 1\r\n" in answer.head
    assert b"forebay-host: near:1\r\n" in answer.head
    hosts = {attempt["host"] for attempt in document(answer)["attempts"]}
    assert hosts == {"far:1", "near:1", "down:1"}


def test_an_unknown_lag_is_behind_any_other():
    answer = refusal("s", 0, [beyond(FAR, Lag(None, None, None)), beyond(NEAR, Lag(9_000, None, None))])
    assert document(answer)["host"] == "near:1"


@pytest.mark.parametrize("order", [1, -1])
def test_a_refusal_is_passed_on_only_if_all_gave_it(order):
    late = beyond(NEAR, Lag(6, 6, 6))
    closed = attempt(FAR, NotReady("closed"), Lag(0, 0, 0))
    answer = refusal("s", 0, [late, closed][::order])
    assert (answer.status, document(answer)["type"]) == (503, "urn:forebay:problem:no-replica")
    assert b"retry-after: 1\r\n" in answer.head
    # Refused for different reasons, but by all.
    assert refusal("s", 0, [late, attempt(FAR, NotActive("standby"), Lag(0, 0, 0))][::order]).status == 412


def test_partitioner_mismatch_everywhere_is_passed_on():
    mismatch = [attempt(host, PartitionerMismatch("misplaced"), Lag(0, 0, 0)) for host in (NEAR, FAR)]
    assert document(refusal("s", 0, mismatch))["type"] == "urn:forebay:problem:partitioner-mismatch"
    both = [mismatch[0], attempt(FAR, NotReady("closed"), Lag(0, 0, 0))]
    assert document(refusal("s", 0, both))["type"] == "urn:forebay:problem:no-replica"


def test_no_replica_quotes_problems_of_one_type():
    closed, replay = (
        attempt(host, NotReady(f"{why}."), Lag(0, 0, 0)) for host, why in ((FAR, "Closed"), (NEAR, "In a replay"))
    )
    down = Attempt(DOWN, "ConnectionRefusedError")
    nothing_said = "No replica of 's' partition 0 could answer."
    for attempts, said in (
        ([closed, down], " Workers say: Closed."),
        ([closed, replay, closed], " Workers say: Closed. In a replay."),
        ([closed, attempt(NEAR, LogDiverged("Diverged."), Lag(0, 0, 0))], ""),
        ([Attempt(NEAR, "answered", HttpAnswer(503, b"", b"of a proxy"))], ""),
        ([Attempt(NEAR, "answered", HttpAnswer(503, b"", b'{"type":[],"detail":null}'))], ""),
    ):
        assert document(refusal("s", 0, attempts))["detail"] == nothing_said + said


def test_a_list_of_nothing_quotes_its_first_partition():
    closed = attempt(FAR, NotReady("Closed."), Lag(0, 0, 0))
    refused = [refusal("s", partition, [closed]) for partition in range(2)]
    first = ", the first: No replica of 's' partition 0 could answer. Workers say: Closed."
    assert document(nothing_read("s", refused))["detail"] == f"No partition of 's' could be read{first}"
    # That of a cursor, all of whose partitions are missing.
    assert document(nothing_read("s", []))["detail"] == "No partition of 's' could be read."


def test_without_any_answer_there_is_no_replica():
    for attempts in ([], [Attempt(DOWN, "ConnectionRefusedError")]):
        assert refusal("s", 0, attempts).status == 503
