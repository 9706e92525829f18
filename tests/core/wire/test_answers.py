import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.errors import LagExceedsTolerance, NotReady, UnknownKey
from forebay.lag import UNKNOWN_LAG, Lag
from forebay.wire.answer_schemas.status import RejectedAddress
from forebay.wire.answers import (
    JSON_HEAD,
    NO_STORE,
    HttpAnswer,
    ReplicaInfo,
    encode_replica_info,
    json_answer,
    lag_json,
    problem_answer,
    provenance_members,
    replica_info_head,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=100)

figures = st.none() | st.integers(0, 2**63 - 1)
lags = st.builds(Lag, figures, figures, figures)
SOURCE = ReplicaInfo(3, "AQtoken_-", "standby", "[::1]:8080", Lag(7, None, 0))


def headers(head: bytes) -> dict[bytes, bytes]:
    return dict(HttpAnswer(200, head, b"").headers())


@repeatable
@given(lags)
def test_lag_is_the_same_in_body_and_headers(lag: Lag) -> None:
    """An unknown lag has no header."""
    body = json.loads(lag_json(lag))
    assert body == lag.document()
    sent = headers(replica_info_head(SOURCE._replace(lag=lag)))
    for name, figure in body.items():
        header = b"forebay-" + name.replace("_", "-").encode()
        assert sent.get(header) == (None if figure is None else str(figure).encode())


@repeatable
@given(lags)
def test_what_is_encoded_once_is_what_headers_and_problems_have(lag: Lag) -> None:
    source = SOURCE._replace(lag=lag, host="[fe80::1%eth0]:8080")
    encoded = encode_replica_info(source)
    assert headers(encoded.json_head) == headers(JSON_HEAD + NO_STORE + replica_info_head(source))
    assert json.loads(b"{%b}" % encoded.members) == provenance_members(source)
    assert encoded.tail == b",%b}" % encoded.members


def test_an_answer_says_which_replica_gave_it() -> None:
    assert headers(replica_info_head(SOURCE)) == {
        b"forebay-record-lag": b"7",
        b"forebay-age-ms": b"0",
        b"forebay-position": b"AQtoken_-",
        b"forebay-role": b"standby",
        b"forebay-host": b"[::1]:8080",
    }


def test_the_spliced_members_are_those_of_a_problem() -> None:
    members = {
        "partition": 3,
        "position": "AQtoken_-",
        "role": "standby",
        "host": "[::1]:8080",
        "lag": {"record_lag": 7, "time_lag_ms": None, "age_ms": 0},
    }
    assert json.loads(b"{" + encode_replica_info(SOURCE).members + b"}") == members
    assert provenance_members(SOURCE) == members


def test_unknown_lag_is_null_in_the_body() -> None:
    assert lag_json(UNKNOWN_LAG) == b'{"record_lag":null,"time_lag_ms":null,"age_ms":null}'


def test_headers_come_apart_as_they_were_put_together() -> None:
    answer = HttpAnswer(200, JSON_HEAD + NO_STORE + replica_info_head(SOURCE), b"")
    assert answer.headers()[:2] == [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    assert b"".join(b"%b: %b\r\n" % line for line in answer.headers()) == answer.head
    assert HttpAnswer(204, b"", b"").headers() == []


def test_a_json_answer_is_compact_utf8_that_no_cache_keeps() -> None:
    answer = json_answer({"name": "Zürich", "list": [1, None]}, 201)
    assert answer.status == 201
    assert answer.body == '{"name":"Zürich","list":[1,null]}'.encode()
    assert dict(answer.headers()) == {b"content-type": b"application/json", b"cache-control": b"no-store"}


def test_a_problem_answer_is_problem_json_with_its_own_status() -> None:
    answer = problem_answer(UnknownKey("No such key.", store="s", key="k"))
    document = json.loads(answer.body)
    assert answer.status == document["status"] == 404
    assert document["type"] == "urn:forebay:problem:unknown-key"
    assert (document["title"], document["detail"]) == ("The store has no such key", "No such key.")
    assert (document["store"], document["key"]) == ("s", "k")
    assert dict(answer.headers()) == {
        b"content-type": b"application/problem+json",
        b"cache-control": b"no-store",
        b"forebay-problem": b"unknown-key",
    }


def test_a_problem_found_by_a_replica_carries_its_figures() -> None:
    problem = LagExceedsTolerance("Too far behind.", **provenance_members(SOURCE))
    answer = problem_answer(problem, SOURCE)
    sent = dict(answer.headers())
    assert sent[b"forebay-record-lag"] == b"7"
    assert b"forebay-time-lag-ms" not in sent
    assert json.loads(answer.body)["lag"] == {"record_lag": 7, "time_lag_ms": None, "age_ms": 0}


@pytest.mark.parametrize(("seconds", "header"), [(1, b"1"), (0, b"0"), (None, None)])
def test_a_problem_says_when_to_come_back_only_if_it_knows(seconds: int | None, header: bytes | None) -> None:
    answer = problem_answer(NotReady("Later.", retry_after_s=seconds))
    assert dict(answer.headers()).get(b"retry-after") == header


def test_what_is_no_text_becomes_question_marks() -> None:
    body = json_answer(RejectedAddress("h:1", "no file \udcff")).body
    assert json.loads(body) == {"address": "h:1", "reason": "no file ?"}
