import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bearer_tokens import TokensFile, bearer
from forebay.errors import SettingError, Unauthenticated
from tests.support.tokens import token_of

DIGEST = hashlib.sha256(b"hashed").hexdigest()
SECRET = token_of("secret")
SECURITY_PAGE = Path(__file__).parents[2] / "docs/security.md"
TOKENS = f"""
# who may ask
ann plain-token-of-ann==
  bob\tsha256:{DIGEST}

ann {token_of("second")}
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


@pytest.mark.parametrize("token", [b"plain-token-of-ann==", b"hashed", token_of("second").encode(), b"Upper"])
@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
def test_a_token_of_the_file_is_let_in(path, scheme, token):
    ask(made(path), scheme + token)


@pytest.mark.parametrize(
    "authorization",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer other",
        b"Bearer ann",
        b"Bearer plain-token-of-ann",
        b"plain-token-of-ann==",
    ]
    + [
        b"Basic plain-token-of-ann==",
        b"Bearer plain-token-of-ann== x",
        b"Bearer \xff",
        b"Bearer sha256:" + DIGEST.encode(),
    ]
    + [b"Bearer " + DIGEST.encode(), b"Bearer #"],
)
def test_anything_else_is_refused(path, authorization):
    with pytest.raises(Unauthenticated):
        ask(made(path), authorization)


def test_long_headers_are_not_remembered(path):
    """A client may spell its token in thousands of ways."""
    tokens = made(path)
    short, long = (b"Bearer " + b" " * spaces + b"plain-token-of-ann==" for spaces in (1, 600))
    assert tokens.holder(short) is tokens.holder(short)
    assert tokens.holder(long) is not tokens.holder(long)
    assert tokens.holder(long) == tokens.holder(short)


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
        (f"ann {SECRET}\nbob\n", 2),
        (f"# who\n\nann {SECRET} more\n", 3),
        (f"ann é{SECRET}", 1),
        (f"ann sha256:{SECRET}", 1),
        (f"ann sha256:{DIGEST}0", 1),
        (f"ann {SECRET} # hers", 1),
        ("ann secret", 1),
        (f"ann {SECRET}\nbob {SECRET[:15]}", 2),
    ],
)
def test_a_malformed_file_is_named_with_its_line_and_no_secret(path, text, line):
    with pytest.raises(SettingError, match=f"line {line} ") as caught:
        made(path, text)
    assert str(path) in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("token", [{}, {"TOKEN": ""}, {"TOKEN": "hashed"}])
def test_the_documented_recipe_prints_nothing_without_a_token(token):
    recipe = re.search(r"^.*printf 'ann sha256:'.*$", SECURITY_PAGE.read_text(), re.MULTILINE)
    assert recipe is not None
    ran = subprocess.run(
        ["sh", "-c", recipe[0]], env={"PATH": os.defpath, **token}, capture_output=True, text=True, check=False
    )
    expected = (True, f"ann sha256:{DIGEST}\n") if token.get("TOKEN") else (False, "")
    assert (ran.returncode == 0, ran.stdout) == expected


def test_a_file_may_come_from_windows(path):
    path.write_bytes(b"\xef\xbb\xbf# secret\r\nann %b\r\n" % SECRET.encode())
    tokens = TokensFile(path)
    ask(tokens, b"Bearer " + SECRET.encode())
    with pytest.raises(Unauthenticated):
        ask(tokens, b"Bearer secret")


@pytest.mark.parametrize("text", ["", "\n", "# ann secret\n"])
def test_a_file_without_a_token_is_refused(path, text):
    with pytest.raises(SettingError, match="no token"):
        made(path, text)


def test_tokens_come_and_go_with_the_file(path):
    now_ms, old, fresh = 0.0, token_of("old"), token_of("fresh")
    path.write_text(f"ann {old}\n")
    tokens = TokensFile(path, lambda: now_ms)
    path.write_text(f"ann {old}\nann {fresh}\n")
    now_ms = 1000.0
    ask(tokens, b"Bearer " + old.encode())
    ask(tokens, b"Bearer " + fresh.encode())
    path.write_text(f"ann {fresh}\n")
    now_ms = 2000.0
    ask(tokens, b"Bearer " + fresh.encode())
    with pytest.raises(Unauthenticated):
        ask(tokens, b"Bearer " + old.encode())


@pytest.mark.parametrize("token", ["", "a b", "a\n", "a:b", "=", "é"])
def test_what_is_no_token_makes_no_header(token):
    with pytest.raises(ValueError, match="token"):
        bearer(token)


def test_the_digest_of_an_unset_token_is_refused(path):
    """What the recipe prints while its variable is not set."""
    digest = hashlib.sha256(b"").hexdigest()
    path.write_text(f"ann {SECRET}\nbob sha256:{digest}\n")
    with pytest.raises(SettingError, match="line 2 has the digest of nothing"):
        TokensFile(path)


@pytest.mark.parametrize("header", [b"Bearer", b"Bearer ", b"bearer   "])
def test_an_empty_token_is_never_known(path, header):
    path.write_text(f"ann {SECRET}")
    with pytest.raises(Unauthenticated):
        TokensFile(path).authenticate("GET", "/v1/stores", header)
