from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from forebay.bearer_tokens import TokensFile
from forebay.wire.answers import HttpAnswer, json_answer
from forebay_web.fast_path.guard import guarded
from forebay_web.fast_path.protocol import FastPathProtocol, Handlers, KeyHandler, Outcome
from forebay_web.fast_path.recogniser import (
    RecognisedBatch,
    RecognisedRead,
    RequestTemplate,
    recognise,
    recognise_batch,
)
from tests.support.tokens import header_of, token_of

AUTHORIZATION = f"Authorization: {header_of('ann')}".encode()
READ = json_answer({"value": 1})
PROTOCOL = cast(FastPathProtocol, None)
"""No handler here touches it."""


class Reads:
    """Lets everything through."""

    def key(self, template: RequestTemplate) -> KeyHandler:
        return lambda segment, protocol: READ

    def batch(self, request: RecognisedBatch, protocol: FastPathProtocol) -> HttpAnswer:
        return READ


def request(*headers: bytes) -> RecognisedRead:
    lines = [b"GET /v1/stores/counts/keys/%C3%A9 HTTP/1.1", b"Host: x", *headers, b"", b""]
    found = recognise(b"\r\n".join(lines))
    assert found is not None
    return found


def read(handlers: Handlers, request: RecognisedRead) -> Outcome:
    return handlers.key(request.template)(request.segment, PROTOCOL)


def batch(*headers: bytes) -> RecognisedBatch:
    lines = [b"POST /v1/stores/counts/batch-get HTTP/1.1", b"Host: x", b"Content-Length: 2", *headers, b"", b"{}"]
    found = recognise_batch(b"\r\n".join(lines))
    assert found is not None
    return found


@pytest.fixture
def tokens(tmp_path: Path) -> TokensFile:
    (tmp_path / "tokens").write_text(f"ann {token_of('ann')}")
    return TokensFile(tmp_path / "tokens")


def test_without_an_authenticator_nothing_comes_in_between():
    reads = Reads()
    assert guarded(reads, None, Counter()) is reads


def test_who_has_a_token_is_let_through_and_who_has_none_is_not(tokens):
    refusals: Counter[int] = Counter()
    handlers = guarded(Reads(), tokens, refusals)
    assert read(handlers, request(AUTHORIZATION)) is READ
    assert handlers.batch(batch(AUTHORIZATION), PROTOCOL) is READ
    for refused in (read(handlers, request()), handlers.batch(batch(), PROTOCOL)):
        assert isinstance(refused, HttpAnswer)
        assert refused.status == 401
    assert refusals == {401: 2}


def test_the_authenticator_gets_the_request_as_it_was_sent():
    requested: list[tuple[Any, ...]] = []

    class Noting:
        def authenticate(self, method: str, path: str, authorization: bytes) -> None:
            requested.append((method, path, authorization))

    handlers = guarded(Reads(), Noting(), Counter())
    read(handlers, request(b"Authorization: Bearer a"))
    handlers.batch(batch(), PROTOCOL)
    assert requested == [
        ("GET", "/v1/stores/counts/keys/%C3%A9", b"Bearer a"),
        ("POST", "/v1/stores/counts/batch-get", b""),
    ]
