from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from forebay.hot_path import HotPathProtocol, HotRequest, guarded, recognise
from forebay.rest.answers import Answer, json_answer
from forebay.tokens import TokensFile

READ = json_answer({"value": 1})
PROTOCOL = cast(HotPathProtocol, None)
"""No handler here touches it."""


def read(request: HotRequest, protocol: HotPathProtocol) -> Answer:
    return READ


def request(*headers: bytes) -> HotRequest:
    lines = [b"GET /v1/stores/counts/keys/%C3%A9 HTTP/1.1", b"Host: x", *headers, b"", b""]
    found = recognise(b"\r\n".join(lines))
    assert found is not None
    return found


@pytest.fixture
def tokens(tmp_path: Path) -> TokensFile:
    (tmp_path / "tokens").write_text("ann secret")
    return TokensFile(tmp_path / "tokens")


def test_without_an_authenticator_nothing_comes_in_between():
    assert guarded(read, None, Counter()) is read


def test_who_has_a_token_is_let_through_and_who_has_none_is_not(tokens):
    refusals: Counter[int] = Counter()
    handle = guarded(read, tokens, refusals)
    assert handle(request(b"Authorization: Bearer secret"), PROTOCOL) is READ
    refused = handle(request(), PROTOCOL)
    assert isinstance(refused, Answer)
    assert refused.status == 401
    assert refusals == {401: 1}


def test_the_authenticator_is_told_the_request_as_it_came():
    asked: list[tuple[Any, ...]] = []

    class Noting:
        def authenticate(self, method: str, path: str, authorization: bytes) -> None:
            asked.append((method, path, authorization))

    guarded(read, Noting(), Counter())(request(b"Authorization: Bearer a"), PROTOCOL)
    assert asked == [("GET", "/v1/stores/counts/keys/%C3%A9", b"Bearer a")]
