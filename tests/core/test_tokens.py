import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError, Unauthenticated
from forebay.tokens import TokensFile, bearer

DIGEST = hashlib.sha256(b"hashed").hexdigest()
TOKENS = f"""
# who may ask
ann plain-token==
  bob\tsha256:{DIGEST}

ann second
eve sha256:{hashlib.sha256(b"Upper").hexdigest().upper()}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def made(path: Path, text: str = TOKENS) -> TokensFile:
    path.write_text(text)
    return TokensFile(path)


def ask(tokens: TokensFile, authorization: bytes) -> None:
    tokens.authenticate("GET", "/v1/stores", authorization)


@pytest.mark.parametrize("token", [b"plain-token==", b"hashed", b"second", b"Upper"])
@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
def test_a_token_of_the_file_is_let_in(path, scheme, token):
    ask(made(path), scheme + token)


@pytest.mark.parametrize(
    "authorization",
    [b"", b"Bearer", b"Bearer ", b"Bearer other", b"Bearer ann", b"Bearer plain-token", b"plain-token=="]
    + [b"Basic plain-token==", b"Bearer plain-token== x", b"Bearer \xff", b"Bearer sha256:" + DIGEST.encode()]
    + [b"Bearer " + DIGEST.encode(), b"Bearer #"],
)
def test_anything_else_is_refused(path, authorization):
    with pytest.raises(Unauthenticated):
        ask(made(path), authorization)


@given(authorization=st.binary(max_size=60))
def test_no_bytes_are_let_in_by_chance(tmp_path_factory, authorization):
    with pytest.raises(Unauthenticated):
        ask(made(tmp_path_factory.getbasetemp() / "tokens"), authorization)


def test_the_refusal_says_nothing_of_the_token(path):
    with pytest.raises(Unauthenticated) as caught:
        ask(made(path), b"Bearer secret")
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ann", 1),
        ("ann secret\nbob\n", 2),
        ("# who\n\nann secret more\n", 3),
        ("ann sécret", 1),
        ("ann sha256:secret", 1),
        (f"ann sha256:{DIGEST}0", 1),
        ("ann secret # hers", 1),
    ],
)
def test_a_malformed_file_is_told_with_its_line_and_no_secret(path, text, line):
    with pytest.raises(SettingError, match=f"line {line} ") as caught:
        made(path, text)
    assert str(path) in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_file_may_come_from_windows(path):
    path.write_bytes(b"\xef\xbb\xbf# secret\r\nann token\r\n")
    tokens = TokensFile(path)
    ask(tokens, b"Bearer token")
    with pytest.raises(Unauthenticated):
        ask(tokens, b"Bearer secret")


@pytest.mark.parametrize("text", ["", "\n", "# ann secret\n"])
def test_a_file_without_a_token_is_refused(path, text):
    with pytest.raises(SettingError, match="no token"):
        made(path, text)


def test_tokens_come_and_go_with_the_file(path):
    now_ms = 0.0
    path.write_text("ann old\n")
    tokens = TokensFile(path, lambda: now_ms)
    path.write_text("ann old\nann fresh\n")
    now_ms = 1000.0
    ask(tokens, b"Bearer old")
    ask(tokens, b"Bearer fresh")
    path.write_text("ann fresh\n")
    now_ms = 2000.0
    ask(tokens, b"Bearer fresh")
    with pytest.raises(Unauthenticated):
        ask(tokens, b"Bearer old")


@pytest.mark.parametrize("token", ["", "a b", "a\n", "a:b", "=", "é"])
def test_what_is_no_token_makes_no_header(token):
    with pytest.raises(ValueError, match="token"):
        bearer(token)


def test_the_digest_of_an_unset_token_is_refused(path):
    """What the recipe prints while its variable is not set."""
    digest = hashlib.sha256(b"").hexdigest()
    path.write_text(f"ann secret\nbob sha256:{digest}\n")
    with pytest.raises(SettingError, match="line 2 has the digest of nothing"):
        TokensFile(path)


@pytest.mark.parametrize("header", [b"Bearer", b"Bearer ", b"bearer   "])
def test_an_empty_token_is_never_known(path, header):
    path.write_text("ann secret")
    with pytest.raises(Unauthenticated):
        TokensFile(path).authenticate("GET", "/v1/stores", header)
