"""Each argument of the client's constructor and methods has an effect: on what is requested, or on what is
returned.

The blocking client stands for both, which are made from one source.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import trustme

from forebay.client import Client, Session
from forebay.errors import NoReplica, Problem
from forebay_client.blocking import Reader
from forebay_client.options import ReadOptions
from tests.support.answering_server import LAG, POSITION, STORE

KINDS = {"windows": "window", "sessions": "session", "versions": "versioned"}
ANSWER = {"store": "s", "key": "k", "value": 0.10, "timestamp_ms": 3, "partition": 0}
ANSWER |= {"position": POSITION, "role": "active"}
REPLICA = {"store": "s", "partition": 0, "task": "0_0", "role": "active", "host": "h", "end_offset": 1, "lag": LAG}


class Script:
    """Answers what every client asks first, refuses the rest, and keeps all requests."""

    def __init__(self) -> None:
        self.requested: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requested.append(request)
        match request.url.path.split("/")[2:]:
            case ["stores", store]:
                return httpx.Response(200, json=described(store))
            case ["stores", _, "keys", "k"]:
                return httpx.Response(200, text=json.dumps({**ANSWER, "host": "h", "lag": LAG}))
            case ["lags"]:
                return httpx.Response(200, json={"lags": [REPLICA, {**REPLICA, "store": "other"}]})
        return httpx.Response(400, json={"type": "about:blank", "title": "refused", "status": 400})

    @property
    def last(self) -> httpx.Request:
        return self.requested[-1]

    @property
    def query(self) -> dict[str, str]:
        return dict(self.last.url.params)

    @property
    def path(self) -> str:
        return self.last.url.path

    @property
    def keys(self) -> Any:
        return json.loads(self.last.content)["keys"]

    @property
    def connects_within_s(self) -> float:
        return float(self.last.extensions["timeout"]["connect"])


def described(store: str) -> dict[str, Any]:
    """A store of the kind that its name begins with."""
    kind = KINDS.get(store.partition("-")[0], "key-value")
    sizes = {"window": {"window_size_ms": 1}, "session": {"gap_ms": 1}}.get(kind, {})
    return {**STORE, "name": store, "kind": kind, **sizes}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def client(script: Script) -> Iterator[Client]:
    with Client("http://one", transport=httpx.MockTransport(script)) as client:
        yield client


Effect = Callable[[Script], Any]
Cases = dict[str, tuple[dict[str, Any], Effect, Any]]
"""By argument: the arguments of a call, where its effect shows, and what shows there."""


def query(name: str) -> Effect:
    return lambda script: script.query.get(name)


def path(script: Script) -> str:
    return script.path


def keys(script: Script) -> Any:
    return script.keys


OPTIONS: Cases = {
    "max_record_lag": ({"max_record_lag": 1}, query("max_record_lag"), "1"),
    "max_time_lag_ms": ({"max_time_lag_ms": 2}, query("max_time_lag_ms"), "2"),
    "max_age_ms": ({"max_age_ms": 3}, query("max_age_ms"), "3"),
    "require_active": ({"require_active": True}, query("require_active"), "true"),
    "prefer": ({"prefer": "any"}, query("prefer"), "any"),
    "headers": ({"headers": True}, query("headers"), "true"),
    "min_position": ({"min_position": POSITION}, query("min_position"), POSITION),
    "wait_ms": ({"wait_ms": 9}, query("wait_ms"), "9"),
    # In whole milliseconds, rounded up, of which hardly any have passed.
    "timeout_ms": ({"timeout_ms": 777_000}, lambda script: int(script.query["timeout_ms"]) > 700_000, True),
}
RANGE: Cases = {
    "start": ({"start": 5}, query("from"), "5"),
    "end": ({"end": 6}, query("to"), "6"),
    "reverse": ({"reverse": True}, query("reverse"), "true"),
    "limit": ({"limit": 7}, query("limit"), "7"),
    "page_size": ({"page_size": 8}, query("limit"), "8"),
}
KEYED: Cases = {"start": ({"start": "a"}, query("from"), "a"), "end": ({"end": "b"}, query("to"), "b")}
PARTIAL: Cases = {"allow_partial": ({"allow_partial": True}, query("allow_partial"), "true")}
PREFIX: Cases = {"prefix": ({"prefix": "p"}, query("prefix"), "p")}
AS_OF: Cases = {"as_of": ({"as_of": 4}, query("as_of"), "4")}
RECORD_AGE: Cases = {"max_record_age_ms": ({"max_record_age_ms": 10}, query("max_record_age_ms"), "10")}
SKIPPING: Cases = {**RECORD_AGE, "skip_old": ({"skip_old": True}, query("skip_old"), "true")}
METHODS: dict[str, Cases] = {
    "get": {
        **AS_OF,
        **RECORD_AGE,
        "store": ({"store": "t"}, path, "/v1/stores/t/keys/a"),
        "key": ({"key": "b"}, path, "/v1/stores/s/keys/b"),
    },
    "get_many": {
        **AS_OF,
        **RECORD_AGE,
        "store": ({"store": "t"}, path, "/v1/stores/t/batch-get"),
        "keys": ({"keys": ["b", "c"]}, keys, ["b", "c"]),
    },
    "entries": {
        **RANGE,
        **KEYED,
        **PREFIX,
        **PARTIAL,
        **SKIPPING,
        "store": ({"store": "t"}, path, "/v1/stores/t/entries"),
    },
    **{
        name: {
            **RANGE,
            **({} if name == "versions" else PARTIAL),
            **SKIPPING,
            "store": ({"store": f"{name}-t"}, lambda script: script.path.split("/")[3], f"{name}-t"),
            "key": ({"key": "b"}, path, f"/v1/stores/{name}-s/keys/b/{name}"),
        }
        for name in KINDS
    },
    "changes": {
        **KEYED,
        **PREFIX,
        "store": ({"store": "t"}, path, "/v1/stores/t/changes"),
        "key": ({"key": "b"}, path, "/v1/stores/s/keys/b/changes"),
        "keys": ({"keys": ["b", "c"]}, query("keys"), '["b", "c"]'),
        "lag_interval_ms": ({"lag_interval_ms": 10}, query("lag_interval_ms"), "10"),
    },
}
USUAL: dict[str, dict[str, Any]] = {
    "get": {"store": "s", "key": "a"},
    "get_many": {"store": "s", "keys": ["a"]},
    "entries": {"store": "s"},
    "windows": {"store": "windows-s"},
    "sessions": {"store": "sessions-s"},
    "versions": {"store": "versions-s", "key": "a"},
    "changes": {"store": "s"},
}
"""What a call without the argument is given."""


def reads() -> list[tuple[str, str]]:
    """Each method of the reads with each of its arguments; in place of the options, each of them."""
    return [
        (method, argument)
        for method in public(Reader)
        for name in arguments(getattr(Reader, method))
        for argument in (ReadOptions.__annotations__ if name == "options" else (name,))
    ]


def public(kind: type) -> list[str]:
    return [name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")]


def arguments(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)[1:]


def case(method: str, argument: str) -> tuple[dict[str, Any], Effect, Any]:
    """The case of an argument; raises ``KeyError`` if there is none."""
    return {**OPTIONS, **METHODS[method]}[argument]


def read(client: Client, method: str, given: dict[str, Any]) -> None:
    """Make a call that the script refuses."""
    with contextlib.suppress(Problem):
        found = getattr(client, method)(**{**USUAL[method], **given})
        next(found)


@pytest.mark.parametrize(("method", "argument"), reads())
def test_an_argument_of_a_read_is_sent(script: Script, client: Client, method: str, argument: str) -> None:
    given, effect, expected = case(method, argument)
    read(client, method, {})
    assert effect(script) != expected
    read(client, method, given)
    assert effect(script) == expected


def test_a_call_for_descriptions_is_given_its_time_and_store(script: Script, client: Client) -> None:
    for method, more in (("stores", {}), ("metadata", {}), ("lags", {}), ("lags", {"store": "s"})):
        try:
            rows = getattr(client, method)(timeout_ms=777_000, **more)
        except Problem:
            rows = None
        # Paths that take no timeout_ms end by the connection's.
        assert 200 < script.connects_within_s <= 777 / 3
        if more:
            assert (script.query, [row.store for row in rows]) == (more, ["s"])
    assert arguments(Client.stores) == arguments(Client.metadata) == ["timeout_ms"]
    assert arguments(Client.lags) == ["store", "timeout_ms"]


def test_a_session_is_at_its_stores_positions(script: Script, client: Client) -> None:
    session = client.session()
    assert session.position("s") is None
    session.read_after("s", POSITION)
    assert (session.position("s"), session.position("t")) == (POSITION, None)
    session.get("s", "k")
    assert script.query["min_position"] == POSITION
    assert arguments(Session.position) == ["store"]
    assert arguments(Session.read_after) == ["store", "token"]


class SecureHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"lags": []}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def secure() -> Iterator[tuple[str, ssl.SSLContext]]:
    """The URL of a server that speaks HTTPS, and whom to trust for that."""
    authority = trustme.CA()
    trusting, own = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(trusting)
    authority.issue_cert("localhost").configure_cert(own)
    with ThreadingHTTPServer(("127.0.0.1", 0), SecureHandler) as server:
        server.socket = own.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://localhost:{server.server_port}", trusting
        server.shutdown()
        thread.join()


def verifies(script: Script, secure: tuple[str, ssl.SSLContext]) -> None:
    url, trusting = secure
    with Client(url, verify=trusting) as client:
        assert client.lags() == []
    with Client(url) as client, pytest.raises(NoReplica, match="CERTIFICATE_VERIFY_FAILED"):
        client.lags(timeout_ms=1_000)


def scripted(script: Script, **given: Any) -> Client:
    return Client(**{"urls": "http://one", "transport": httpx.MockTransport(script), **given})


def asks_its_servers(script: Script, _: object) -> None:
    with scripted(script, urls=["http://two:81", "http://three"]) as client:
        client.lags()
    assert str(script.last.url) == "http://two:81/v1/lags"


def has_its_time(script: Script, _: object) -> None:
    with scripted(script, timeout_ms=777_000) as client:
        client.get("s", "k")
    assert int(script.query["timeout_ms"]) > 700_000


def shows_its_token(script: Script, _: object) -> None:
    with scripted(script, token="secret-of-16-characters") as client:
        client.lags()
    assert script.last.headers["authorization"] == "Bearer secret-of-16-characters"


def sends_through_its_transport(script: Script, _: object) -> None:
    with scripted(script) as client:
        client.lags()
    assert script.requested


def has_decimals(script: Script, _: object) -> None:
    with scripted(script, decimals=True) as exact, scripted(script) as client:
        assert type(exact.get("s", "k").value) is Decimal
        assert type(client.get("s", "k").value) is float


def is_refused(script: Script, _: object) -> None:
    with pytest.raises(ValueError, match="run a router beside the program"):
        scripted(script, partition_aware=True)


CONSTRUCTOR: dict[str, Callable[[Script, Any], None] | str] = {
    "urls": asks_its_servers,
    "timeout_ms": has_its_time,
    "token": shows_its_token,
    "verify": verifies,
    "transport": sends_through_its_transport,
    "decimals": has_decimals,
    "partition_aware": is_refused,
}


@pytest.mark.parametrize("argument", arguments(Client.__init__))
def test_an_argument_of_the_constructor_has_an_effect(
    script: Script, secure: tuple[str, ssl.SSLContext], argument: str
) -> None:
    shows = CONSTRUCTOR[argument]
    if callable(shows):
        shows(script, secure)


def test_every_method_is_walked() -> None:
    """Closing has no argument."""
    assert public(Reader) == list(METHODS)
    assert set(public(Client)) == {"session", "stores", "metadata", "lags", "close"}
    assert public(Session) == ["position", "read_after"]
    assert arguments(Client.session) == arguments(Client.close) == []
