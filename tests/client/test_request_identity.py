"""Answers to other requests, as from a connection that is out of step, are never returned by any kind of read."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from forebay import errors
from forebay.client import ALL_KEYS, Answer, AsyncClient, Client
from forebay.codecs.keys import KEY_CODECS
from forebay.errors import AnswerMismatch, Problem
from forebay_client.request_identity import Requested, batch_mismatch, change_mismatch, spec_mismatch
from forebay_client.results import answer_of
from tests.support.answering_server import LAG, POSITION, AnsweringServer, answering_server

ANSWER = {
    "store": "s",
    "key": "a",
    "value": 1,
    "timestamp_ms": 3,
    "partition": 0,
    "position": POSITION,
    "role": "active",
    "host": "h",
}
ANSWER |= {"lag": LAG}
MISS = {"type": "urn:forebay:problem:unknown-key", "detail": "None.", "store": "s", "key": "a"}


def of(key: Any, codec: str = "string") -> Requested:
    return Requested("s", key, KEY_CODECS[codec])


@pytest.mark.parametrize("document", [ANSWER, MISS])
def test_an_answer_and_a_miss_are_of_the_store_and_the_key(document):
    assert of("a").mismatch(document) is None
    assert of("a").mismatch({**document, "key": "b"}) == "the key 'b' of 's' for 'a'"
    assert of("a").mismatch({**document, "store": "t"}) == "the store 't' for 's'"
    for member in ("store", "key"):
        with pytest.raises(LookupError):
            of("a").mismatch({name: value for name, value in document.items() if name != member})


def test_problem_may_omit_its_subject_but_not_mismatch():
    """A problem that names another store or key than the request's is an answer to another request."""
    problem = errors.NotReady("Soon.").document()
    assert of("a").mismatch(problem) is None
    assert of("a").mismatch({**problem, "store": "s", "key": "a"}) is None
    assert of("a").mismatch({**problem, "key": "b"}) == "the key 'b' of 's' for 'a'"
    assert of("a").mismatch({**problem, "store": "t"}) == "the store 't' for 's'"


def test_a_list_of_all_keys_names_the_store_only():
    assert Requested("s").mismatch({"store": "s", "entries": []}) is None
    assert Requested("s").mismatch({"store": "t", "entries": []})
    assert Requested("s").key is ALL_KEYS


@pytest.mark.parametrize(
    ("codec", "requested", "same", "other"),
    [
        ("string", "1", "1", 1),
        ("int64", 2**53 + 1, 2**53 + 1, 2**53),
        ("int32", 1, 1, True),
        ("int32", 1, 1, "1"),
        ("bytes", "_wA=", "_wA", "_wE"),
        ("json", 1, 1.0, True),
        ("json", None, None, 0),
        ("json", {"b": 1, "a": [1]}, {"a": [1], "b": 1}, {"a": [True], "b": 1}),
        ("json", [], [], {}),
    ],
)
def test_keys_are_the_same_if_their_bytes_are(codec, requested, same, other):
    assert of(requested, codec).mismatch({"store": "s", "key": same}) is None
    assert of(requested, codec).mismatch({"store": "s", "key": other})


def test_a_batch_has_a_result_for_each_key_in_their_order():
    requested = [of("a"), of("b")]
    found, miss = {**ANSWER}, {"key": "b", "problem": MISS | {"key": "b"}}
    assert batch_mismatch("s", requested, {"results": [found, miss]}) is None
    assert batch_mismatch("s", requested, {"results": [miss, found]}) == "the key 'b' of 's' for 'a'"
    assert batch_mismatch("s", requested, {"results": [found]}) == "1 results for 2 keys"
    elsewhere = {"key": "b", "problem": {**MISS, "store": "t"}}
    assert batch_mismatch("s", requested, {"results": [found, elsewhere]}) == "the store 't' for 's'"
    assert batch_mismatch("s", requested, errors.NotReady("Soon.").document()) is None
    assert batch_mismatch("s", requested, {**errors.NotReady("Soon.").document(), "store": "t"})


def test_a_description_and_an_event_are_compared_as_well():
    assert spec_mismatch("s", {"name": "s"}) is None
    assert spec_mismatch("s", {"name": "t"})
    assert spec_mismatch("s", errors.UnknownStore("No.", store="s").document()) is None
    assert change_mismatch(of("a"), answer_of(ANSWER)) is None
    assert change_mismatch(of("b"), answer_of(ANSWER))
    assert change_mismatch(of("b"), errors.UnknownKey("None.", store="s", key="a"))
    assert change_mismatch(of("b"), errors.NoReplica("Nobody.")) is None


# Over connections

Read = Callable[[Any], Coroutine[Any, Any, Any]]


async def get(client: AsyncClient) -> Any:
    return await client.get("s", "a")


async def get_many(client: AsyncClient) -> Any:
    (one,) = await client.get_many("s", ["a"])
    return one


async def follow(client: AsyncClient) -> Any:
    async with client.changes("s", "a") as changes:
        return await anext(changes)


def blocking(url: str, read: Read) -> Any:
    with Client(url) as client:
        match read.__name__:
            case "get":
                return client.get("s", "a")
            case "get_many":
                return client.get_many("s", ["a"])[0]
        with client.changes("s", "a") as changes:
            return next(changes)


def awaited(url: str, read: Read) -> Any:
    async def whole() -> Any:
        async with AsyncClient(url) as client:
            return await read(client)

    return asyncio.run(whole())


class OutOfStep:
    """Some answers are another key's; the connections that all answers came over."""

    def __init__(self, wrong: int, **members: Any) -> None:
        self._wrong = wrong
        self._members = members or {"key": "b"}
        self.connections: list[str] = []

    def __call__(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.connections.append(answer["host"])
        self._wrong -= 1
        return {**answer, **(self._members if self._wrong >= 0 else {})}


@pytest.mark.parametrize("call", [blocking, awaited])
@pytest.mark.parametrize("read", [get, get_many, follow])
@pytest.mark.parametrize("members", [{"key": "b"}, {"store": "t"}])
def test_mismatched_answer_is_retried_on_a_new_connection(call, read, members):
    with answering_server() as server:
        server.change = out_of_step = OutOfStep(1, **members)
        answer = call(server.url, read)
        assert isinstance(answer, Answer)
        assert (answer.store, answer.key, answer.value) == ("s", "a", "a")
        assert len(set(out_of_step.connections)) == 2


@pytest.mark.parametrize("call", [blocking, awaited])
@pytest.mark.parametrize("read", [get, get_many, follow])
def test_second_mismatched_answer_is_an_error(call, read):
    """The error names the requested key and the one in the answer."""
    with answering_server() as server:
        server.change = out_of_step = OutOfStep(2)
        with pytest.raises(
            AnswerMismatch, match=r"the key 'b' of 's' for 'a', on two connections.*Find the proxy"
        ):
            call(server.url, read)
        assert len(set(out_of_step.connections)) == 2


def test_it_is_read_again_from_another_server():
    with answering_server() as first, answering_server() as second:
        first.change, second.change = OutOfStep(9), OutOfStep(0)
        with Client([first.url, second.url]) as client:
            assert client.get("s", "a").value == "a"
            assert client.get("s", "a").value == "a"
        assert (len(first.change.connections), len(second.change.connections)) == (1, 2)


def test_what_was_not_returned_is_no_part_of_a_session():
    with answering_server() as server, Client(server.url) as client:
        server.change = OutOfStep(2, key="b")
        session = client.session()
        with pytest.raises(AnswerMismatch):
            session.get("s", "a")
        assert session.position("s") is None


def test_a_description_of_another_store_is_not_kept(server_of_t: AnsweringServer):
    with Client(server_of_t.url) as client, pytest.raises(AnswerMismatch, match="the store 't' for 's'"):
        client.get("s", "a")


@pytest.fixture
def server_of_t() -> Any:
    with answering_server() as server:
        server.describe = lambda store: {**store, "name": "t"}
        yield server


def test_an_answer_that_names_nothing_is_none():
    with answering_server() as server, Client(server.url) as client:
        server.change = lambda answer: {name: value for name, value in answer.items() if name != "key"}
        with pytest.raises(Problem, match="neither a router nor a worker"):
            client.get("s", "a")
