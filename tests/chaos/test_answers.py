"""Documents of the service become reads with what the checker needs."""

from dataclasses import replace
from typing import Any

from forebay.client import Answer
from forebay.errors import LagExceedsTolerance
from forebay.lag import Lag
from forebay.position import Position, encode_position
from tests.chaos import answers
from tests.chaos.history import Portion, Read, Scope

READ = Read("r", "key", "router", "t", "counts", 1.0, 2.0, 0)
TOKEN = encode_position(Position(b"identity", {3: 42}))
SOURCE: dict[str, Any] = {"partition": 3, "position": TOKEN, "role": "standby", "host": "w1"}
SOURCE |= {"lag": {"record_lag": 1, "time_lag_ms": None, "age_ms": 5}}
PORTION = Portion(42, "standby", "w1", 1, None, 5)
MISS = {"type": "urn:forebay:problem:unknown-key", "status": 404, "key": "k", **SOURCE}
VALUE = {"of": ["k"], "serial": 1}


def test_a_hit_and_a_miss_state_value_position_and_lag():
    hit = answers.of_key(READ, 200, {"key": "k", "value": VALUE, **SOURCE})
    assert hit == replace(READ, status=200, items=((("k",), VALUE),), portions={3: PORTION})
    miss = answers.of_key(READ, 404, MISS)
    assert miss == replace(READ, status=404, problem="unknown-key", items=((("k",), None),), portions={3: PORTION})


def test_a_refusal_states_its_problem_alone():
    refused = answers.of_key(READ, 503, {"type": "urn:forebay:problem:no-replica"})
    assert refused == replace(READ, status=503, problem="no-replica")
    assert answers.of_key(READ, 500, {"detail": "Internal Server Error"}).problem == "no type"


def test_the_clients_answers_are_read_alike():
    answer = Answer("counts", "k", VALUE, 7, 3, TOKEN, "standby", "w1", Lag(1, None, 5))
    assert answers.of_client(READ, ("k",), answer) == answers.of_key(
        READ, 200, {"key": "k", "value": VALUE, **SOURCE}
    )
    refused = answers.of_client(READ, ("k",), LagExceedsTolerance("too far behind", lag=SOURCE["lag"]))
    assert (refused.status, refused.problem) == (412, "lag-exceeds-tolerance")


def page(entries: list[dict[str, Any]], following: str | None) -> Read:
    document = {"key": "k", "windows": entries, "next": following, "partitions": [SOURCE]}
    return answers.of_list(replace(READ, scope=Scope(key="k")), 200, document, "windows")


def test_a_page_ends_at_its_last_item_unless_it_is_the_last():
    entries = [{"start_ms": 5, "end_ms": 6, "value": VALUE}]
    assert page(entries, None).items == ((("k", 5), VALUE),)
    assert page(entries, None).scope == Scope(key="k")
    assert page(entries, "cursor").scope == Scope(key="k", last=("k", 5))
    assert page(entries, "cursor").portions == {3: PORTION}


def test_empty_page_with_a_cursor_states_no_absence():
    """Only the last page of a list states how far its replicas had applied."""
    assert page([], "cursor").portions == {}
    assert page([], None).portions == {3: PORTION}
