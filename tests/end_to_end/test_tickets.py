"""Tickets open streams of real routers and workers, to a real browser too, and are in no log."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from forebay.wire.server_sent_events import Event, EventReader
from tests.support.browser import CHROMIUM, browser_page
from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.tokens import header_of, token_of

KEY = "/v1/stores/counts/keys/a"
EXAMPLE = re.search(
    r"```js\n(async function follow.+?)```",
    (Path(__file__).parents[2] / "docs" / "rest.md").read_text(),
    re.DOTALL,
)


@dataclass(frozen=True)
class Served:
    """A worker, two routers with one key, and a router of two processes with a key of its own."""

    cluster: Cluster
    worker: str
    first: str
    second: str
    several: str
    tokens: Path
    """The tokens that the router of two processes accepts."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tickets")
    texts = {"to-worker": token_of("router"), "key": "k" * 64, "of-worker": f"router {token_of('router')}\n"}
    for name in ("of-routers", "changing"):
        texts[name] = f"ann {token_of('ann')}\nbob {token_of('bob')}\n"
    for name, text in texts.items():
        (directory / name).write_text(text)
    with running_cluster(directory, headers={"authorization": header_of("ann")}) as cluster:
        cluster.put("counts", {b"a": b"1"})
        worker = cluster.start_worker(None, "--auth-tokens-file", f"{directory}/of-worker", ready=False)
        to_worker = ("--worker-token-file", f"{directory}/to-worker", "--log-level", "debug")
        sharing = (*to_worker, "--auth-tokens-file", f"{directory}/of-routers")
        sharing += ("--ticket-key-file", f"{directory}/key")
        first, second = (cluster.launch_router(*sharing) for _ in range(2))
        changing = ("--auth-tokens-file", f"{directory}/changing", "--cors-allow-origins", "*")
        several = cluster.launch_router(*to_worker, *changing, "--processes", "2")
        for address in (worker, first, second, several):
            cluster.wait_ready(address)
        cluster.wait_settled(first, replicas=1)
        yield Served(cluster, worker, first, second, several, directory / "changing")


def issue(address: str, holder: str = "ann", **body: str) -> str:
    url, headers = f"http://{address}/v1/tickets", {"authorization": header_of(holder)}
    answer = httpx.post(url, headers=headers, json={"store": "counts", **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return str(answer.json()["ticket"])


def shown(address: str, ticket: str, path: str = f"{KEY}/changes") -> tuple[int, bytes]:
    """The status and the first event, or the problem, of a stream that a ticket is shown for."""
    with httpx.stream("GET", f"http://{address}{path}?ticket={ticket}") as response:
        if response.status_code != 200:
            return response.status_code, response.read()
        return 200, next(events_of(response)).data


def events_of(response: httpx.Response) -> Iterator[Event]:
    reader = EventReader()
    return (event for piece in response.iter_bytes() for event in reader.feed(piece))


def test_ticket_opens_streams_at_routers_sharing_the_key(served):
    ticket = issue(served.first)
    for address in (served.first, served.second):
        # The worker requires tokens and has another key: it would refuse the ticket if it got it.
        status, data = shown(address, ticket)
        assert (status, json.loads(data)["value"]) == (200, 1)
        status, data = shown(address, ticket, "/v1/stores/counts/changes")
        assert (status, json.loads(data)["store"]) == (200, "counts")
    assert shown(served.several, ticket)[0] == 401
    assert b"not issued here" in shown(served.several, ticket)[1]


def test_all_processes_of_a_router_have_one_key(served):
    ticket = issue(served.several)
    # Each over a connection of its own, which the kernel spreads.
    assert {shown(served.several, ticket)[0] for _ in range(12)} == {200}
    assert shown(served.first, ticket)[0] == 401


def test_a_worker_issues_and_opens_its_own(served):
    ticket = issue(served.worker, "router")
    assert json.loads(shown(served.worker, ticket)[1])["value"] == 1
    assert shown(served.first, ticket)[0] == 401


def test_ticket_opens_nothing_but_its_stores_streams(served):
    """A ticket for a key opens the stream of that key alone."""
    of_store, of_key = issue(served.first), issue(served.first, key="b")
    for ticket, path, status in (
        (of_store, "/v1/stores/numbers/keys/1/changes", 403),
        (of_key, f"{KEY}/changes", 403),
        (of_store, KEY, 401),
        (of_store, "/v1/stores/counts/keys/changes", 401),
        (of_store, "/v1/stores/counts/entries", 401),
        (of_store, "/v1/status", 401),
        (f"{of_store}x", f"{KEY}/changes", 401),
        (f"{of_store}&ticket={of_store}", f"{KEY}/changes", 401),
        ("", f"{KEY}/changes", 401),
    ):
        found, problem = shown(served.first, ticket, path)
        assert found == status, path
        assert not ticket or ticket.encode() not in problem
    url = f"http://{served.first}/v1/tickets"
    assert httpx.post(url, json={"store": "counts"}).status_code == 401
    headers = {"authorization": header_of("ann")}
    assert httpx.post(f"{url}?ticket={of_store}", headers=headers, json={"store": "counts"}).status_code == 400
    for body, status in (({"store": "nope"}, 404), ({}, 400), ({"store": "counts", "key": 7}, 400)):
        assert httpx.post(url, headers=headers, json=body).status_code == status


@pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser: {CHROMIUM} is missing")
def test_example_follows_a_key_until_its_token_is_removed(served, tmp_path):
    """It runs in a browser, and no log shows a ticket."""
    assert EXAMPLE is not None
    router = f"http://{served.several}"
    with browser_page(tmp_path) as page:
        page.run(f"{EXAMPLE[1]}; values = []; details = []; opened = []; undefined")
        page.run(f"lone = new EventSource('{router}{KEY}/changes'); undefined")
        page.wait_for("lone.readyState === EventSource.CLOSED", "the refusal of a stream without a ticket")
        show = "(value, detail) => { values.push(value); details.push(detail ?? ''); }"
        page.run(f"follow('{router}', '{token_of('ann')}', 'counts', 'a', {show})")
        page.wait_for("values.at(-1) === 1", "the value")
        served.cluster.put("counts", {b"a": b"2"})
        page.wait_for("values.at(-1) === 2", "the change")
        fresh = served.tokens.with_suffix(".fresh")
        fresh.write_text(f"bob {token_of('bob')}\n")
        fresh.replace(served.tokens)

        def ended() -> bool:
            # A stream ends with its next event.
            served.cluster.put("counts", {b"a": b"2"})
            return bool(page.run("details.some((detail) => detail.includes('not known here'))"))

        wait_until(ended, "the end of the stream")
        queries = [parse_qs(urlsplit(url).query) for url in page.requested]
    [ticket, *_] = [query["ticket"][0] for query in queries if "ticket" in query]
    logs = served.cluster.logs()
    assert "router listens" in logs
    assert ticket not in logs
    assert "ticket=" not in logs
