"""Signed tokens of a real issuer: whom a process lets in, and what it makes of keys that change."""

import base64
import hmac
import json
import time
from collections.abc import Iterator

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from forebay import jwt_tokens
from forebay.errors import NotReady, Unauthenticated
from forebay.jwt_tokens import LEEWAY_S, JwtTokens, Trust
from tests.support.cluster import wait_until
from tests.support.issuer import Issuer

AUDIENCE = "forebay"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer({}, audience=AUDIENCE) as issuer:
        yield issuer


@pytest.fixture(autouse=True)
def closes_tokens(monkeypatch) -> Iterator[None]:
    """None of them is left that asks an issuer who is gone."""
    opened: list[JwtTokens] = []
    begin = JwtTokens.__init__

    def begin_and_note(tokens: JwtTokens, *arguments) -> None:
        begin(tokens, *arguments)
        opened.append(tokens)

    monkeypatch.setattr(JwtTokens, "__init__", begin_and_note)
    yield
    for tokens in opened:
        tokens.close()


def tokens_of(issuer: Issuer, clock=lambda: time.time() * 1000) -> JwtTokens:
    tokens = JwtTokens(Trust(issuer.url, AUDIENCE), clock)
    wait_until(lambda: knows_keys(tokens), "the keys")
    return tokens


def knows_keys(tokens: JwtTokens) -> bool:
    try:
        enter(tokens, "no.signed.token")
    except NotReady:
        return False
    except Unauthenticated:
        return True
    raise AssertionError("anything is accepted")


def enter(tokens: JwtTokens, token: str) -> None:
    tokens.authenticate("GET", "/v1/stores/counts/keys/a", f"Bearer {token}".encode())


def test_a_token_of_the_issuer_is_accepted_until_it_expires(issuer):
    now_ms = time.time() * 1000
    tokens = tokens_of(issuer, lambda: now_ms)
    token = issuer.token("ann")
    enter(tokens, token)
    now_ms += 1000 * (issuer.life_s + LEEWAY_S) - 2_000
    enter(tokens, token)
    issuer.life_s = -1.0 - LEEWAY_S
    with pytest.raises(Unauthenticated, match=r"it has expired; get another from its issuer\.$"):
        enter(tokens, issuer.token("ann"))


def test_a_token_that_was_accepted_is_checked_again_once_it_expires(issuer):
    now_ms = time.time() * 1000
    tokens = tokens_of(issuer, lambda: now_ms)
    issuer.life_s = 2.0 - LEEWAY_S
    token = issuer.token("ann")
    enter(tokens, token)
    now_ms += 4_000
    wait_until(lambda: time.time() * 1000 > now_ms, "the token's end")
    with pytest.raises(Unauthenticated, match="expired"):
        enter(tokens, token)


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"aud": "another"}, "'aud'. It must be of the issuer .* for the audience 'forebay'"),
        ({"aud": ["another", AUDIENCE]}, None),
        ({"aud": None}, "'aud'"),
        ({"iss": "https://another.example"}, "'iss'"),
        ({"iss": None}, "'iss'"),
        ({"exp": None}, "'exp'"),
        ({"exp": "tomorrow"}, "'exp'"),
        ({"nbf": int(time.time()) + 3600}, "not yet valid"),
        ({"nbf": int(time.time()) + LEEWAY_S // 2}, None),
    ],
)
def test_a_token_is_accepted_by_its_claims(issuer, claims, complaint):
    tokens, token = tokens_of(issuer), issuer.token("ann", **claims)
    if complaint is None:
        enter(tokens, token)
        return
    with pytest.raises(Unauthenticated, match=complaint) as refusal:
        enter(tokens, token)
    assert "another" not in str(refusal.value).replace("get another", "")


def text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def part(of_token: dict[str, object]) -> str:
    return text(json.dumps(of_token).encode())


def forged(issuer: Issuer, kind: str) -> str:
    """A token that would be right, but for its signature."""
    right = issuer.token("ann")
    head, content, signature = right.split(".")
    [key] = issuer.keys
    now_s = int(time.time())
    claims = {"iss": issuer.url, "aud": AUDIENCE, "sub": "ann", "exp": now_s + 60}
    match kind:
        case "unsigned":
            return f"{part({'alg': 'none', 'kid': key.kid})}.{content}."
        case "by the public key":
            signed = f"{part({'alg': 'HS256', 'kid': key.kid})}.{content}"
            return f"{signed}.{text(hmac.digest(key.as_pem(private=False), signed.encode(), 'sha256'))}"
        case "by another key":
            return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, RSAKey.generate_key(2048))
        case "other content":
            return f"{head}.{part({**claims, 'sub': 'bob'})}.{signature}"
    return kind


@pytest.mark.parametrize(
    "kind", ["unsigned", "by the public key", "by another key", "other content", "a.b.c", "no-token", "a.b.\xff"]
)
def test_what_the_issuer_has_not_signed_is_refused(issuer, kind):
    tokens = tokens_of(issuer)
    with pytest.raises(Unauthenticated):
        enter(tokens, forged(issuer, kind))


def test_a_published_secret_signs_nothing(issuer):
    """Everyone has it."""
    secret = OctKey.generate_key(256, {"kid": "shared"})
    issuer.keys.append(secret)
    tokens = tokens_of(issuer)
    token = jwt.encode(
        {"alg": "HS256", "kid": "shared"}, {"iss": issuer.url, "aud": AUDIENCE, "exp": 2**40}, secret
    )
    with pytest.raises(Unauthenticated):
        enter(tokens, token)
    enter(tokens, issuer.token("ann"))


def test_an_issuer_that_publishes_secrets_only_has_no_keys(issuer, monkeypatch):
    monkeypatch.setattr(jwt_tokens, "_RETRY_S", 0.05)
    issuer.keys = [OctKey.generate_key(256, {"kid": "shared"})]
    tokens = JwtTokens(Trust(issuer.url, AUDIENCE))
    wait_until(lambda: issuer.requests["/jwks"] >= 2, "keys, again and again")
    assert not knows_keys(tokens)


def test_keys_that_are_replaced_are_fetched_once_one_is_not_known(issuer, monkeypatch):
    monkeypatch.setattr(jwt_tokens, "_MIN_BETWEEN_MS", 0.0)
    tokens = tokens_of(issuer)
    old = issuer.token("ann")
    enter(tokens, old)
    issuer.rotate()
    new = issuer.token("ann")
    with pytest.raises(Unauthenticated, match="does not publish, or has published only just now"):
        enter(tokens, new)

    def accepted() -> bool:
        try:
            enter(tokens, new)
        except Unauthenticated:
            return False
        return True

    wait_until(accepted, "the new keys")
    # What was remembered is forgotten with the keys.
    with pytest.raises(Unauthenticated):
        enter(tokens, old)


def test_keys_that_nobody_has_are_fetched_now_and_then(issuer):
    tokens = tokens_of(issuer)
    unknown = jwt.encode({"alg": "RS256", "kid": "x"}, {"iss": issuer.url}, RSAKey.generate_key(2048))
    fetched = issuer.requests["/jwks"]
    # Longer than a fetch takes.
    for _ in range(50):
        with pytest.raises(Unauthenticated):
            enter(tokens, unknown)
        time.sleep(0.02)
    assert issuer.requests["/jwks"] == fetched


def test_an_issuer_that_is_away_keeps_nobody_out_who_was_let_in(issuer, monkeypatch):
    monkeypatch.setattr(jwt_tokens, "_MIN_BETWEEN_MS", 0.0)
    monkeypatch.setattr(jwt_tokens, "_RETRY_S", 0.05)
    tokens = tokens_of(issuer)
    issuer.is_away = True
    before = issuer.requests.total()
    unknown = jwt.encode({"alg": "RS256", "kid": "x"}, {"iss": issuer.url}, RSAKey.generate_key(2048))
    with pytest.raises(Unauthenticated):
        enter(tokens, unknown)
    wait_until(lambda: issuer.requests.total() >= before + 2, "vain attempts")
    enter(tokens, issuer.token("ann"))


def test_until_keys_were_fetched_once_the_process_is_not_ready(issuer, monkeypatch):
    monkeypatch.setattr(jwt_tokens, "_RETRY_S", 0.05)
    issuer.is_away = True
    tokens = JwtTokens(Trust(issuer.url, AUDIENCE))
    with pytest.raises(NotReady, match=f"The keys of {issuer.url} are not known yet"):
        enter(tokens, issuer.token("ann"))
    issuer.is_away = False
    wait_until(lambda: knows_keys(tokens), "the keys")
    enter(tokens, issuer.token("ann"))


def test_an_issuer_that_says_to_be_another_is_not_trusted(issuer, monkeypatch):
    monkeypatch.setattr(jwt_tokens, "_RETRY_S", 0.05)
    tokens = JwtTokens(Trust(f"{issuer.url}/", AUDIENCE))
    wait_until(lambda: issuer.requests["/.well-known/openid-configuration"] >= 2, "discovery, again and again")
    assert issuer.requests["/jwks"] == 0
    with pytest.raises(NotReady):
        enter(tokens, issuer.token("ann"))
