import base64
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from forebay.bearer_tokens import BearerTokens, TokenHolder, TokensFile
from forebay.errors import Forbidden, Problem, SettingError, Unauthenticated
from forebay_web.hosts import ANY_HOST
from forebay_web.request_guard import Guard, later_refusal
from forebay_web.tickets import TICKET_LIFETIME_MS, Tickets, ticket_key_of
from tests.support.tokens import header_of, token_of

KEY = b"k" * 32
NOW_MS = 1_764_061_255_000
OF_A = "/v1/stores/counts/keys/a/changes"
OF_ALL = "/v1/stores/counts/changes"


class Clock:
    """Times that a test sets."""

    def __init__(self) -> None:
        self.now_ms = float(NOW_MS)

    def __call__(self) -> float:
        return self.now_ms


class Door:
    """What issues and opens tickets, for the holders in a file of tokens."""

    def __init__(self, path: Path, *holders: str, key: bytes = KEY) -> None:
        self.path, self.key = path, key
        self.clock, self.read_clock = Clock(), Clock()
        self.admit(*holders)
        self.tokens = TokensFile(path, self.read_clock)
        self.tickets = Tickets(lambda: self.key, self.tokens, self.clock)

    def admit(self, *holders: str) -> None:
        """Replace the file's tokens."""
        fresh = self.path.with_suffix(".fresh")
        fresh.write_text("".join(f"x {token_of(holder)}\n" for holder in holders))
        fresh.replace(self.path)
        if hasattr(self, "tokens"):
            self.read_clock.now_ms += 1_001

    def issue(self, store: str = "counts", key: str | None = None, holder: str = "ann") -> str:
        text, expires_ms = self.tickets.issue(header_of(holder).encode(), store, key)
        assert expires_ms == self.clock.now_ms + TICKET_LIFETIME_MS
        return text


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "tokens", "ann", "bob")


def test_a_ticket_for_a_store_opens_all_its_streams(door):
    ticket = door.issue()
    for path in (OF_A, "/v1/stores/counts/keys/b%2Fc/changes", OF_ALL):
        door.tickets.open(ticket, "GET", path)
        # As often as it is shown: a browser reconnects with the same address.
        door.tickets.open(ticket, "GET", path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/stores/numbers/keys/a/changes"),
        ("GET", "/v1/stores/numbers/changes"),
        ("GET", "/v1/stores/counts"),
        ("GET", "/v1/stores/counts/keys/a"),
        # A key of that name is read, not followed.
        ("GET", "/v1/stores/counts/keys/changes"),
        ("GET", "/v1/stores/counts/keys/a/windows"),
        ("GET", f"{OF_A}/"),
        ("GET", f"/x{OF_A}"),
        ("POST", OF_A),
    ],
)
def test_it_opens_nothing_else(door, method, path):
    with pytest.raises(Forbidden, match="not for this stream"):
        door.tickets.open(door.issue(), method, path)


def test_a_ticket_for_a_key_opens_the_stream_of_that_key_alone(door):
    ticket = door.issue(key="a/b")
    door.tickets.open(ticket, "GET", "/v1/stores/counts/keys/a%2Fb/changes")
    for path in ("/v1/stores/counts/keys/a/changes", "/v1/stores/counts/keys/a%252Fb/changes", OF_ALL):
        with pytest.raises(Forbidden):
            door.tickets.open(ticket, "GET", path)


def test_it_opens_for_a_minute(door):
    ticket = door.issue()
    door.clock.now_ms += TICKET_LIFETIME_MS - 1
    door.tickets.open(ticket, "GET", OF_A)
    door.clock.now_ms += 1
    with pytest.raises(Unauthenticated, match="expired"):
        door.tickets.open(ticket, "GET", OF_A)


def test_a_clock_that_is_far_ahead_gives_it_no_longer_life(door):
    door.clock.now_ms += 3_600_000
    ticket = door.issue()
    door.clock.now_ms -= 3_600_000
    with pytest.raises(Unauthenticated):
        door.tickets.open(ticket, "GET", OF_A)


@given(at=st.integers(0, 1_000), other=st.sampled_from("AZaz09-_.=+ \x00é"))
def test_changed_in_any_place_it_opens_nothing(tmp_path_factory, at, other):
    door = Door(tmp_path_factory.getbasetemp() / "changed", "ann")
    ticket = door.issue()
    at %= len(ticket)
    for changed in (ticket[:at] + other + ticket[at + 1 :], ticket[:at] + other + ticket[at:], ticket[:at]):
        if changed != ticket:
            with pytest.raises(Unauthenticated):
                door.tickets.open(changed, "GET", OF_A)


def test_ticket_opens_on_routers_with_the_same_key_only(door, tmp_path):
    same, other = (Door(tmp_path / "others", "ann", key=key) for key in (KEY, b"o" * 32))
    same.tickets.open(door.issue(), "GET", OF_A)
    with pytest.raises(Unauthenticated, match="not issued here"):
        other.tickets.open(door.issue(), "GET", OF_A)


def test_without_its_token_it_opens_nothing(door, tmp_path):
    ticket = door.issue()
    door.admit("bob")
    with pytest.raises(Unauthenticated, match="not known here"):
        door.tickets.open(ticket, "GET", OF_A)
    door.admit("ann")
    door.tickets.open(ticket, "GET", OF_A)
    # Nor does one of a process without tokens, once there are some.
    anonymous, _ = Tickets(lambda: KEY, None, door.clock).issue(b"", "counts", None)
    with pytest.raises(Unauthenticated):
        door.tickets.open(anonymous, "GET", OF_A)


def test_it_does_not_show_its_token(door):
    content = json.loads(base64.urlsafe_b64decode(door.issue().partition(".")[0] + "=="))
    assert (content["store"], content["method"]) == ("counts", "GET")
    assert "ann" not in json.dumps(content)
    digest = base64.urlsafe_b64encode(door.tokens.holder(header_of("ann").encode()).digest).decode()
    assert not digest.startswith(content["holder"][:20])


def test_whoever_an_authenticator_of_ones_own_lets_in_gets_none(door):
    class Anybody:
        def authenticate(self, method: str, path: str, authorization: bytes) -> None: ...

    tickets = Tickets(lambda: KEY, Anybody(), door.clock)
    with pytest.raises(Forbidden, match="tokens file"):
        tickets.issue(b"Bearer x", "counts", None)
    with pytest.raises(Unauthenticated):
        tickets.open(door.issue(), "GET", OF_A)


async def test_a_stream_outlives_its_ticket_but_not_its_token(door):
    scopes: list[Scope] = []

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)

    async def nothing(*_: object) -> None:
        raise AssertionError

    guard = Guard(stream, ANY_HOST, door.tokens, door.tickets, Counter())
    query = f"lag_interval_ms=100&%74icket={door.issue()}&numbers=text".encode()
    scope = {"type": "http", "method": "GET", "path": OF_A, "headers": [], "query_string": query}
    await guard(scope, nothing, nothing)
    [opened] = scopes
    assert opened["query_string"] == b"lag_interval_ms=100&numbers=text"
    door.clock.now_ms += 10 * TICKET_LIFETIME_MS
    assert later_refusal(opened) is None
    door.admit("bob")
    refusal = later_refusal(opened)
    assert isinstance(refusal, Problem)
    assert (refusal.status, refusal.detail[:9]) == (401, "The token")


def test_a_key_of_a_file_takes_effect_and_a_weak_one_is_refused(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{'f' * 64}\n")
    path.chmod(0o600)
    assert ticket_key_of(path, b"own")() == b"f" * 64
    assert ticket_key_of(None, b"own")() == b"own"
    for wrong in ("f" * 31, f"{'f' * 32} {'g' * 32}", ""):
        path.write_text(wrong)
        with pytest.raises(SettingError, match="openssl rand") as caught:
            ticket_key_of(path, b"own")
        assert "fff" not in str(caught.value)


def test_a_ticket_of_a_token_that_expires_opens_no_stream_after_that(door):
    """Whichever process opens it: none need know the token."""

    class Issued(BearerTokens):
        def authenticate(self, method: str, path: str, authorization: bytes) -> None: ...

        def holder(self, authorization: bytes) -> TokenHolder:
            return TokenHolder(authorization, NOW_MS + 30_000)

        def is_accepted(self, holder: TokenHolder, now_epoch_ms: float) -> bool:
            return holder.until_ms is not None and now_epoch_ms < holder.until_ms

        def digests(self) -> frozenset[bytes]:
            return frozenset()

    ticket, _ = Tickets(lambda: KEY, Issued(), door.clock).issue(b"Bearer a.b.c", "counts", None)
    other = Tickets(lambda: KEY, Issued(), door.clock)
    holder = other.open(ticket, "GET", OF_A)
    door.clock.now_ms += 29_999
    other.require_known(holder)
    door.clock.now_ms += 1
    for opened in (lambda: other.require_known(holder), lambda: other.open(ticket, "GET", OF_A)):
        with pytest.raises(Unauthenticated, match="was issued for is not known here, or has expired"):
            opened()
    # Nor any at a process that accepts no such tokens, though it has the same key.
    door.clock.now_ms -= 30_000
    for tickets in (door.tickets, Tickets(lambda: KEY, None, door.clock)):
        with pytest.raises(Unauthenticated, match="is not known here"):
            tickets.open(ticket, "GET", OF_A)
