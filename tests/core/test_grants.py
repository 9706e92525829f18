"""Which principal may do what, by the table of grants."""

import io
import json
import threading
import time
from pathlib import Path

import pytest

from forebay.bearer_tokens import TokenHolder, TokensFile
from forebay.errors import Forbidden, Unauthenticated
from forebay.grants import AuditLog, GrantedTokens, Needed, needed_for, read_grants
from tests.support.cluster import wait_until
from tests.support.tokens import header_of, token_of

GRANTS = """
[[grant]]
principal = "ann"
stores = ["orders_*"]
verbs = ["read", "follow"]
key_prefix = "eu-"

[[grant]]
principal = "ann"
stores = ["rates"]
verbs = ["read", "list", "metadata"]

[[grant]]
claim = { groups = "analysts" }
stores = ["*"]
verbs = ["list"]
"""


@pytest.fixture
def granted(tmp_path: Path, audited: io.StringIO) -> GrantedTokens:
    tokens, grants = tmp_path / "tokens", tmp_path / "grants.toml"
    tokens.write_text(f"ann {token_of('ann')}\nbob {token_of('bob')}\n")
    grants.write_text(GRANTS)
    for file in (tokens, grants):
        file.chmod(0o600)
    return GrantedTokens(TokensFile(tokens), grants, audit=AuditLog(audited))


@pytest.fixture
def audited() -> io.StringIO:
    return io.StringIO()


def allows(granted: GrantedTokens, path: str, who: str = "ann") -> bool:
    try:
        granted.authenticate("GET", path, header_of(who).encode())
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("/v1/stores/a/keys/k%2F1", Needed("read", "a", "k/1")),
        ("/v1/stores/a/keys/k/windows", Needed("read", "a", "k")),
        ("/v1/stores/a/keys/k/changes", Needed("follow", "a", "k")),
        ("/v1/stores/a/batch-get", Needed("read", "a")),
        ("/v1/stores/a/changes", Needed("follow", "a")),
        ("/v1/stores/a%62/entries", Needed("list", "ab")),
        ("/v1/stores/a/sessions", Needed("list", "a")),
        ("/v1/stores/a", Needed("metadata", "a")),
        ("/v1/stores/a/history", Needed("metadata", "a")),
        ("/v1/metadata/stores/a/keys/k", Needed("metadata", "a", "k")),
        ("/v1/metadata/stores/a", Needed("metadata", "a")),
        ("/v1/stores", Needed("metadata", None)),
        ("/v1/health", Needed("metadata", None)),
        ("/v1/tickets", Needed("follow", None)),
        ("/v1/status", Needed("admin", None)),
        ("/metrics", Needed("admin", None)),
        # What nobody has thought of is not for everybody.
        ("/v1/stores/a/keys/k/x/y", Needed("admin", None)),
        ("/v2/stores/a/keys/k", Needed("admin", None)),
    ],
)
def test_a_path_says_what_it_needs(path, needed):
    assert needed_for(path) == needed


def test_nothing_granted_is_nothing_allowed(granted):
    assert allows(granted, "/v1/stores/orders_eu/keys/eu-1")
    assert allows(granted, "/v1/stores/orders_eu/keys/eu-1/changes")
    assert not allows(granted, "/v1/stores/orders_eu/keys/us-1")
    assert not allows(granted, "/v1/stores/orders_eu/entries")
    assert not allows(granted, "/v1/stores/orders")
    assert allows(granted, "/v1/stores/rates/keys/us-1")
    assert allows(granted, "/v1/stores")
    assert not allows(granted, "/metrics")
    for path in ("/v1/stores/rates/keys/a", "/v1/stores", "/v1/health"):
        assert not allows(granted, path, "bob")
    with pytest.raises(Unauthenticated):
        granted.authenticate("GET", "/v1/stores", b"Bearer nobodys")


def test_a_refusal_names_what_is_missing(granted):
    with pytest.raises(
        Forbidden, match="'ann' may read of the store 'orders_eu' only keys that begin with 'eu-'"
    ) as no:
        granted.authenticate("GET", "/v1/stores/orders_eu/keys/us-1", header_of("ann").encode())
    assert no.value.members == {"verb": "read", "store": "orders_eu"}
    with pytest.raises(Forbidden, match="'bob' has no grant with the verb 'list' for the store 'rates'"):
        granted.authenticate("GET", "/v1/stores/rates/entries", header_of("bob").encode())


def test_a_range_is_granted_whole_or_not_at_all(granted):
    access = granted.access(header_of("ann").encode())
    access.require_range("follow", "orders_eu", "eu-west")
    access.require_range("list", "rates", "")
    for prefix in ("", "e", "us-"):
        with pytest.raises(Forbidden):
            access.require_range("follow", "orders_eu", prefix)


def test_claims_are_those_of_signed_tokens():
    [_, _, of_analysts] = read_grants(GRANTS)
    assert of_analysts.is_for(TokenHolder(b"", None, "x", {"groups": ["analysts", "others"]}))
    assert of_analysts.is_for(TokenHolder(b"", None, "x", {"groups": "analysts"}))
    for claims in ({}, {"groups": "analysts2"}, {"groups": ["others"]}, {"groups": None}):
        assert not of_analysts.is_for(TokenHolder(b"", None, "x", claims))


def test_changes_apply_without_a_restart(granted, tmp_path, audited):
    assert not allows(granted, "/v1/stores/rates/keys/a", "bob")
    (tmp_path / "grants.toml").write_text(GRANTS.replace('"ann"', '"bob"'))
    wait_until(lambda: allows(granted, "/v1/stores/rates/keys/a", "bob"), "the new grants")
    assert not allows(granted, "/v1/stores/rates/keys/a")
    # One that cannot be used changes nothing.
    (tmp_path / "grants.toml").write_text("[[grant]]\n")
    time.sleep(1.1)
    assert allows(granted, "/v1/stores/rates/keys/a", "bob")

    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for line in audited.getvalue().splitlines()]

    wait_until(lambda: sum(line["audit"] == "grants-read" for line in lines()) == 2, "the audit lines")
    events = [(line["audit"], line.get("principal"), line.get("verb"), line.get("store")) for line in lines()]
    assert ("grants-read", None, None, None) in events
    assert ("refused", "bob", "read", "rates") in events
    assert ("refused", "ann", "read", "rates") in events
    # Neither the path nor the key.
    assert "/v1/" not in audited.getvalue()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = 1", "unknown field `x`"),
        ("[[grant]]\nstores = ['a']\nverbs = ['read']", "needs a principal"),
        ("[[grant]]\nprincipal = 'a'\nverbs = ['read']", "missing required field `stores`"),
        ("[[grant]]\nprincipal = 'a'\nstores = []\nverbs = ['read']", r"length >= 1 - at `\$.grant\[0\].stores`"),
        ("[[grant]]\nprincipal = 'a'\nstores = ['']\nverbs = ['read']", r"`\$.grant\[0\].stores\[0\]`"),
        ("[[grant]]\nprincipal = 'a'\nstores = ['a']\nverbs = []", r"length >= 1 - at `\$.grant\[0\].verbs`"),
        ("[[grant]]\nprincipal = 'a'\nstores = ['a']\nverbs = ['reads']", "'reads' - at .*verbs"),
        ("[[grant]]\nprincipal = 'a'\nstores = ['a']\nverbs = ['read']\nprefix = 'x'", "unknown field `prefix`"),
        ("[[grant]]\nclaim = { groups = 5 }\nstores = ['a']\nverbs = ['read']", "Expected `str`.*claim"),
        ("[[grant]]\nprincipal = 'a'\nstores = ['a']\nverbs = ['read']\nkey_prefix = 5", "`str`.*key_prefix"),
        ("[[grant]", "TOML|Expected"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(text, fault):
    with pytest.raises(ValueError, match=fault):
        read_grants(text)


class Unread(io.StringIO):
    """Takes nothing until it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = threading.Event()

    def write(self, text: str) -> int:
        self.is_read.wait()
        return super().write(text)


def test_audit_lines_that_find_no_room_are_counted():
    stream = Unread()
    audit = AuditLog(stream, max_waiting=10)
    audit.write("refused")
    wait_until(lambda: audit._lines.empty(), "the first line under way")
    for _ in range(12):
        audit.write("refused")
    stream.is_read.set()
    audit.flush()
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["lines"] for line in written if line["audit"] == "dropped"] == [2]
    assert sum(line["audit"] == "refused" for line in written) == 11
