"""Both tiers with tokens: which requests are refused or accepted, and that a router sends workers its own
token."""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from forebay.cli import commands
from forebay.client import Answer, AsyncClient, Client
from forebay.errors import ForebayError, Unauthenticated
from forebay.wire.server_sent_events import Event, EventReader
from openapi.generate import router_document
from tests.end_to_end.test_fast_path import exchange, request, steady
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until
from tests.support.installed import install_authenticator
from tests.support.tokens import header_of, token_of

KEY = "/v1/stores/counts/keys/a"
ORIGIN = "https://a.example"
RIGHT = f"Authorization: {header_of('client')}"
TO_THE_PARSER = "TE: trailers"
REFUSED = [[], ["Authorization: Bearer wrong"], ["Authorization: Basic Y2xpZW50"], ["Authorization:"]]


@dataclass(frozen=True)
class Served:
    """A worker that accepts the operator's and the router's tokens, and a router that accepts the client's."""

    cluster: Cluster
    worker: str
    router: str
    worker_token: Path
    """The file of the token that the router sends to the worker."""
    refused: tuple[str, Path]
    """A router that the worker refuses, and the file of its token."""
    changing: tuple[str, Path]
    """A router whose file of tokens changes, and that file."""
    by_store: str
    """A router with a third-party authenticator."""
    anybodys: str
    """The address of a router that accepts every request."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tokens")
    digest = hashlib.sha256(token_of("router").encode()).hexdigest()
    # One token opens both, to let one test ask either.
    (directory / "of-worker").write_text(f"operator {token_of('operator')}\nrouter sha256:{digest}\n")
    (directory / "of-router").write_text(f"operator {token_of('operator')}\nann {token_of('client')}\n")
    for name in ("to-worker", "lastingly-to-worker"):
        (directory / name).write_text(token_of("router") + "\n")
    wrong, changing = directory / "wrong", directory / "changing"
    wrong.write_text("wrong")
    changing.write_text(f"ann {token_of('old')}\n")
    install_authenticator(directory)
    with running_cluster(directory, headers={"authorization": header_of("operator")}) as cluster:
        cluster.put("counts", {b"a": b'{"n":1}', **{b"k%d" % i: b"%d" % i for i in range(50)}})
        cluster.put("numbers", {(-7).to_bytes(8, "big", signed=True): b"7"})
        allowed = ("--cors-allow-origins", ORIGIN)
        worker = f"127.0.0.1:{free_port()}"
        everywhere = ("--listen", worker.replace("127.0.0.1", "0.0.0.0"), "--advertise", worker)
        tokens = ("--auth-tokens-file", str(directory / "of-worker"))
        cluster.start_worker(worker, *tokens, *everywhere, *allowed, ready=False)
        # All start together, which is quicker.
        tokens = ("--auth-tokens-file", str(directory / "of-router"))
        router = cluster.launch_router(*tokens, "--worker-token-file", str(directory / "to-worker"), *allowed)
        shown = ("--worker-token-file", str(directory / "lastingly-to-worker"))
        refused = cluster.launch_router("--worker-token-file", str(wrong))
        changed = cluster.launch_router("--auth-tokens-file", str(changing), *shown)
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("PYTHONPATH", str(directory), prepend=":")
            by_store = cluster.launch_router("--authenticator", "by-store", *shown)
        anybodys = f"0.0.0.0:{free_port()}"
        cluster.launch_router("--listen", anybodys, "--allow-anonymous", *shown)
        for address in (worker, router, changed, by_store):
            cluster.wait_ready(address)
        cluster.wait_settled(router, replicas=1)
        exchange(router, request(KEY, RIGHT) * 20, 20)
        yield Served(
            cluster,
            worker,
            router,
            directory / "to-worker",
            refused=(refused, wrong),
            changing=(changed, changing),
            by_store=by_store,
            anybodys=anybodys,
        )


def status_of(answer: bytes) -> int:
    return int(answer[9:12])


def get(address: str, path: str, holder: str | None = "client", **options: Any) -> httpx.Response:
    headers = {} if holder is None else {"authorization": header_of(holder)}
    return httpx.get(f"http://{address}{path}", headers=headers, **options)


def first_event(address: str, path: str, holder: str) -> Event:
    headers = {"authorization": header_of(holder)}
    with httpx.stream("GET", f"http://{address}{path}", headers=headers) as response:
        assert response.status_code == 200
        return next(events_of(response))


def events_of(response: httpx.Response) -> Iterator[Event]:
    reader = EventReader()
    return (event for piece in response.iter_bytes() for event in reader.feed(piece))


@pytest.mark.parametrize("headers", REFUSED)
@pytest.mark.parametrize("origin", [[], [f"Origin: {ORIGIN}"], ["Origin: https://b.example"]])
def test_a_refusal_is_the_same_bytes_on_the_hot_path_and_off_it(served, headers, origin):
    for address in (served.worker, served.router):
        (hot,) = exchange(address, request(KEY, *headers, *origin), 1)
        (cold,) = exchange(address, request(KEY, *headers, *origin, TO_THE_PARSER), 1)
        assert hot == cold
        assert hot.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nwww-authenticate: Bearer\r\n" in hot
        assert b"urn:forebay:problem:unauthenticated" in hot
        assert (b"\r\naccess-control-allow-origin: " in hot) is (origin == [f"Origin: {ORIGIN}"])


def test_valid_token_answers_alike_on_fast_and_slow_path(served):
    for path in (KEY, "/v1/stores/counts/keys/nobody", "/v1/stores/nope/keys/a"):

        def same(path: str = path) -> bool:
            (hot,) = exchange(served.router, request(path, RIGHT), 1)
            (cold,) = exchange(served.router, request(path, RIGHT, TO_THE_PARSER), 1)
            assert status_of(hot) in (200, 404)
            return steady(hot) == steady(cold)

        wait_until(same, "the same bytes", 5)


@pytest.mark.parametrize("more", [[], [TO_THE_PARSER]])
def test_two_tokens_are_one_too_many(served, more):
    for address in (served.worker, served.router):
        (answer,) = exchange(address, request(KEY, RIGHT, RIGHT, *more), 1)
        assert status_of(answer) == 400


def test_a_token_behind_the_body_is_none(served):
    head = ["POST /v1/stores/counts/batch-get HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked"]
    body = ["e", '{"keys":["a"]}', "0", f"Authorization: {header_of('operator')}", "", ""]
    data = "\r\n".join([*head, "Trailer: Authorization", "", *body]).encode()
    for address in (served.worker, served.router):
        assert [status_of(answer) for answer in exchange(address, data + data, 2)] == [401, 401]


@pytest.mark.parametrize("path", [*router_document()["paths"], "/docs", "/openapi.json", "/nothing", "/%6Civez"])
def test_all_but_liveness_readiness_and_identity_wants_a_token(served, path):
    path = path.replace("{store}", "counts").replace("{key}", "a")
    method = "POST" if path.endswith("batch-get") else "GET"
    for address in (served.worker, served.router):
        answer = httpx.request(
            method, f"http://{address}{path}", json={"keys": ["a"]} if method == "POST" else None
        )
        assert answer.status_code == (200 if path in ("/livez", "/readyz", "/v1/identity") else 401), path


def test_a_preflight_brings_no_token_and_needs_none(served):
    requested = {"origin": ORIGIN, "access-control-request-method": "GET"}
    requested["access-control-request-headers"] = "authorization"
    for address in (served.worker, served.router):
        answer = httpx.options(f"http://{address}{KEY}", headers=requested)
        assert answer.status_code == 200
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()


@pytest.mark.parametrize("seed", range(6))
def test_pipelined_requests_are_refused_one_by_one(served, seed):
    """Just those without a valid token get a 401, in their place."""
    chance = random.Random(seed)
    headers = [
        [chance.choice([RIGHT, RIGHT, "Authorization: Bearer wrong", "X-Token: none"])]
        + ([TO_THE_PARSER] if chance.random() < 0.2 else [])
        for _ in range(40)
    ]
    data = b"".join(request(f"/v1/stores/counts/keys/k{i}", *lines) for i, lines in enumerate(headers))
    cuts = sorted(chance.sample(range(1, len(data)), 10))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    found = exchange(served.router, pieces, 40)
    assert [status_of(answer) for answer in found] == [200 if RIGHT in lines else 401 for lines in headers]
    keys = [re.search(rb'"key":"k(\d+)"', answer) for answer in found]
    assert [int(key[1]) for key in keys if key] == [i for i, lines in enumerate(headers) if RIGHT in lines]


def test_router_sends_workers_its_own_token(served):
    """Single reads, batches, lists and streams all carry it."""
    # The worker does not take the client's.
    assert get(served.worker, KEY).status_code == 401
    assert get(served.router, KEY).json()["value"] == {"n": 1}
    assert len(get(served.router, "/v1/stores/counts/entries?limit=30").json()["entries"]) == 30
    requested = {"keys": ["a", "k1", "k2"]}
    headers = {"authorization": header_of("client")}
    batch = httpx.post(
        f"http://{served.router}/v1/stores/counts/batch-get", headers=headers, json=requested
    ).json()
    assert [result["value"] for result in batch["results"]] == [{"n": 1}, 1, 2]
    assert first_event(served.router, f"{KEY}/changes", "client").name == "value"
    # A page was read by the router, with its own token.
    assert first_event(served.router, "/v1/stores/counts/changes", "client").name == "reset"


def test_the_routers_token_is_not_for_its_clients(served):
    assert get(served.router, KEY, "router").status_code == 401


def test_router_with_a_rejected_token_is_not_ready(served):
    """`/readyz` names the setting until the token file is right, and the log names the worker once."""
    router, token = served.refused
    reported = f"the worker {served.worker} refuses this router's status polls with 401"
    wait_until(lambda: "--worker-token-file" in get(router, "/readyz").text, "the reason")
    assert get(router, "/readyz").status_code == 503
    assert get(router, KEY).json()["type"] == "urn:forebay:problem:not-ready"
    assert get(router, "/v1/status").json()["auth_rejected_by"] == [served.worker]
    token.write_text(token_of("router") + "\n")
    wait_until(lambda: get(router, "/readyz").status_code == 200, "readiness")
    assert get(router, KEY).status_code == 200
    assert get(router, "/v1/status").json()["auth_rejected_by"] == []
    # However often it was polled.
    assert served.cluster.logs().count(reported) == 1


def test_worker_auth_failure_is_not_the_clients_fault(served):
    """The client gets `no-replica` and no 401."""
    allowed = served.worker_token.read_text()
    log = f"the worker {served.worker} refuses this router's reads with 401"
    try:
        served.worker_token.write_text("wrong")
        wait_until(lambda: get(served.router, KEY).status_code != 200, "a refusal by the worker")
        for headers in ([RIGHT], [RIGHT, TO_THE_PARSER]):
            (answer,) = exchange(served.router, request(KEY, *headers), 1)
            assert status_of(answer) == 503
            assert b"urn:forebay:problem:no-replica" in answer
            assert b"www-authenticate" not in answer
        assert get(served.router, "/v1/stores/counts/entries").status_code == 503
        event = first_event(served.router, f"{KEY}/changes?timeout_ms=100", "client")
        assert event.name == "problem"
        assert b"urn:forebay:problem:no-replica" in event.data
        assert served.cluster.logs().count(log) == 1
    finally:
        served.worker_token.write_text(allowed)
    # The router may have been ready all along: each token file is read again when it is next asked for.
    wait_until(lambda: get(served.router, KEY).status_code == 200, "an answer")
    wait_until(lambda: get(served.router, "/readyz").status_code == 200, "readiness")


def test_tokens_change_under_a_running_process(served):
    router, tokens = served.changing
    # The cluster is settled as another router sees it.
    wait_until(lambda: get(router, KEY, "old").status_code == 200, "the old token")
    with httpx.stream(
        "GET", f"http://{router}{KEY}/changes?lag_interval_ms=100", headers={"authorization": header_of("old")}
    ) as followed:
        events = events_of(followed)
        assert next(events).name == "value"
        tokens.write_text(f"ann {token_of('fresh')}\n")
        wait_until(lambda: get(router, KEY, "fresh").status_code == 200, "the new token")
        *_, last = itertools.islice(events, 100)
        assert (last.name, json.loads(last.data)["status"]) == ("problem", 401)
    assert get(router, KEY, "old").status_code == 401
    tokens.write_text("ann\n")

    def reported() -> bool:
        assert get(router, KEY, "fresh").status_code == 200
        return f"{tokens} cannot be used: line 1 is neither" in served.cluster.logs()

    wait_until(reported, "an error in the log")


def without_id(answer: bytes) -> bytes:
    """An answer without the id that is made for each failure, and its time."""
    return re.sub(rb"[0-9a-f]{32}|(?<=dur=)[0-9.]+", b"", answer)


def test_an_authenticator_of_ones_own_rules_by_path(served):
    router = served.by_store
    mine = "Authorization: Bearer counts"
    wait_until(lambda: status_of(exchange(router, request(KEY, mine), 1)[0]) == 200, "an answer")
    for path, headers, status in [
        (KEY, [mine], 200),
        ("/v1/stores/numbers/keys/-7", [mine], 403),
        (KEY, [], 401),
        (KEY, ["Authorization: Bearer broken"], 500),
    ]:
        (hot,) = exchange(router, request(path, *headers), 1)
        (cold,) = exchange(router, request(path, *headers, TO_THE_PARSER), 1)
        assert status_of(hot) == status
        assert status == 200 or without_id(hot) == without_id(cold)
    assert get(router, "/v1/status", None).status_code == 200


def test_only_a_process_that_lets_anybody_ask_says_so(served):
    warning = re.compile(r"listening on (\S+), which other machines may reach: requests are not authenticated")
    wait_until(lambda: warning.search(served.cluster.logs()), "the warning")
    assert warning.findall(served.cluster.logs()) == [served.anybodys]


def auth_failures(address: str, status: int) -> int:
    metrics = get(address, "/metrics", "operator").text
    found = re.search(rf'^forebay_(?:router_)?auth_failures_total{{status="{status}"}} (\d+)', metrics, re.M)
    return int(found[1]) if found else 0


def test_what_is_refused_is_counted_by_status(served):
    for address in (served.worker, served.router):
        before = auth_failures(address, 401), auth_failures(address, 400)
        wrong = request(KEY, "Authorization: Bearer wrong")
        unread = request("/v1/status") + request("/metrics") + request(KEY, TO_THE_PARSER)
        two = request(KEY, RIGHT, RIGHT)
        exchange(address, wrong * 3 + request("/livez") + unread + two, 8)
        assert (auth_failures(address, 401), auth_failures(address, 400)) == (before[0] + 6, before[1] + 1)


def test_a_refused_connection_is_kept(served):
    right = request(KEY, f"Authorization: {header_of('operator')}")
    found = exchange(served.worker, request("/v1/status") + request(KEY) + right, 3)
    assert [status_of(answer) for answer in found] == [401, 401, 200]


def test_a_client_shows_its_token(served):
    with Client(f"http://{served.router}", token=token_of("client")) as client:
        assert client.get("counts", "a").value == {"n": 1}
        assert [
            answer.value for answer in client.get_many("counts", ["k1", "k2"]) if isinstance(answer, Answer)
        ] == [1, 2]
        with client.changes("counts", "a") as changes:
            change = next(changes)
        assert isinstance(change, Answer)
        assert change.value == {"n": 1}
    for token in (None, "wrong"):
        with Client(f"http://{served.router}", token=token) as client:
            with pytest.raises(Unauthenticated):
                client.get("counts", "a")
            with pytest.raises(Unauthenticated):
                next(client.changes("counts", "a"))
    with pytest.raises(ValueError, match="a token is"):
        Client(f"http://{served.router}", token="two words")


async def test_a_client_that_awaits_shows_its_token(served):
    async with AsyncClient(f"http://{served.router}", token=token_of("client")) as client:
        assert (await client.get("counts", "a")).value == {"n": 1}
    async with AsyncClient(f"http://{served.router}") as client:
        with pytest.raises(Unauthenticated):
            await client.get("counts", "a")


def test_commands_show_a_token_from_a_file_or_the_environment(served, tmp_path):
    token, empty, unknown = (tmp_path / name for name in ("token", "empty", "unknown"))
    unknown.write_text("unknown-token-of-enough-letters")
    token.write_bytes(b"\xef\xbb\xbf%b\r\n" % token_of("client").encode())
    empty.write_text("")
    url = ("--url", f"http://{served.router}")
    run = CliRunner().invoke
    for options, environment in ((("--token-file", str(token)), "wrong"), ((), token_of("client"))):
        read = run(commands, ["query", "counts", "a", *url, *options], env={"FOREBAY_TOKEN": environment})
        assert (read.exit_code, '"n": 1' in read.output) == (0, True), read.output
        table = run(commands, ["status", *url, *options], env={"FOREBAY_TOKEN": environment})
        assert "active" in table.output
    refused = run(commands, ["query", "counts", "a", *url])
    assert (refused.exit_code, "unauthenticated" in refused.output) == (1, True)
    for command, remedy in (
        (["status", *url], "/v1/lags. Give a token with --token-file or FOREBAY_TOKEN."),
        (["status", *url, "--token-file", str(unknown)], "it does not know the token that was sent."),
        (["status", *url, "--token-file", str(empty)], "empty does not contain a token"),
    ):
        error = run(commands, command).exception
        assert isinstance(error, ForebayError)
        assert remedy in str(error)
    follow = ["query", "--follow", "hours", "a", *url, "--token-file", str(token)]
    assert "wrong-store-kind" in run(commands, follow).output


def test_only_the_page_of_the_console_needs_no_token(served: Served) -> None:
    for address in (served.worker, served.router):
        assert httpx.get(f"http://{address}/console").status_code == 200
        assert httpx.get(f"http://{address}/console/console.js").status_code == 200
        for path in ("/consoles", "/v1/health", "/v1/timeline", "/v1/stores/counts/replicas"):
            assert httpx.get(f"http://{address}{path}").status_code == 401, path
