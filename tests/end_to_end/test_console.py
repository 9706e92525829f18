"""The console in a real browser: what it shows of a live cluster, a fail-over, its policy, accessibility."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.browser import CHROMIUM, Page, browser_page
from tests.support.cluster import Cluster, free_port, restore_processes, running_cluster, wait_until
from tests.support.tokens import header_of, token_of

ROOT = Path(__file__).parents[2]
AXE = next(Path(sys.prefix).glob("axe-core-*.js"), None)
TWO_KINDS = """
application_id = "test"

[[subtopology]]
name = "all"
partitions = 2

[[subtopology.store]]
name = "counts"

[[subtopology.store]]
name = "hours"
kind = "window"
window_size_ms = 1000
retention_ms = 100000000
"""
CELLS = 'article[aria-label="counts"] .cell'
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser: {CHROMIUM} is missing")


@contextlib.contextmanager
def console(address: str, directory: Path) -> Iterator[Page]:
    """The console of a process; whatever it does, it complains of nothing and loads nothing from elsewhere."""
    with browser_page(directory) as page:
        page.resize(1200, 1600)
        page.open(f"http://{address}/console")
        yield page
        assert page.complaints == []
        assert {url.split("/")[2] for url in page.requested if url.startswith("http")} == {address}


def labels(page: Page, store: str = "counts") -> list[str]:
    """What a screen reader says of the partitions of a store."""
    script = f"""[...document.querySelectorAll('article[aria-label="{store}"] .cell')].map((e) => e.ariaLabel)"""
    found: list[str] = page.run(script)
    return found


def shows(text: str, selector: str = "body") -> str:
    """A condition: an element shows a text."""
    return f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})"


def test_console_shows_stores_and_a_failover_live(cluster: Cluster, tmp_path: Path) -> None:
    """The page needs no reload."""
    cluster.put("counts", {b"k%d" % n: b'{"n": %d}' % n for n in range(40)})
    workers = cluster.start_workers(3)
    router = cluster.start_router()
    cluster.wait_settled(router)
    with console(router, tmp_path) as page:
        page.wait_for(
            shows("4 stores of 'test' with 10 partitions are served by 3 workers", "#summary"), "summary"
        )
        page.wait_for(shows("Nothing is wrong", "#verdict"), "all well")
        page.wait_for(f"document.querySelectorAll('{CELLS}.served').length === 4", "the grid")
        assert all("active on" in label and "standby on" in label for label in labels(page))
        # Nobody writes heartbeats for it: of that age nothing is known.
        page.wait_for(
            """document.querySelector('article[aria-label="hours"] .cell .age').innerText === '?'""", "no age"
        )
        page.run("window.sameDocument = true")

        lost = cluster.active_for(router, "counts", "k1")
        assert lost is not None
        cluster.kill(lost)
        page.wait_for(shows(f"The worker {lost} does not answer.", "#findings .error"), "the finding")
        page.wait_for(shows("served by 2 workers", "#summary"), "fewer workers")
        page.wait_for(shows("promotion", "#timeline-rows"), "the promotion")
        page.wait_for(f"document.querySelectorAll('{CELLS}.served').length === 4", "the grid")
        page.wait_for(f"!document.querySelector('{CELLS}[aria-label*=\"{lost}: time\"]')", "the survivors")
        assert page.run("window.sameDocument")

        for worker in set(workers) - {lost}:
            cluster.kill(worker)
        page.wait_for(f"document.querySelectorAll('{CELLS}.unheld').length === 4", "nothing left")
        page.wait_for(shows("?", f"{CELLS} .lag"), "an unknown lag")
        assert page.text(f"{CELLS} .sign") == "✕"


def test_a_restore_is_shown_while_it_lasts_and_in_what_changed(tmp_path: Path) -> None:
    topology = TWO_KINDS.replace("partitions = 2", "partitions = 1")
    with running_cluster(tmp_path, topology_text=topology) as cluster:
        cluster.put("counts", {b"k%d" % n: b"1" for n in range(60_000)})
        worker = cluster.start_worker(None, "--restore-processes", "1", ready=False)
        wait_until(lambda: restore_processes(cluster.workers[worker].pid), "a restore process")
        [child] = restore_processes(cluster.workers[worker].pid)
        os.kill(child, signal.SIGSTOP)
        router = cluster.start_router(ready=False)
        with console(router, tmp_path) as page:
            page.wait_for(shows("records so far", "#timeline-rows"), "the restore")
            assert " left." in page.text("#timeline-rows")
            page.wait_for(shows("counts: 1 of 1 partitions is being restored", "#findings"), "the finding")
            page.wait_for(f"document.querySelector('{CELLS}.restoring')", "the cell")
            os.kill(child, signal.SIGCONT)
            page.wait_for(shows("has ended", "#timeline-rows"), "its end")
            page.wait_for(f"document.querySelector('{CELLS}.served')", "the active")
            assert "records so far" not in page.text("#timeline-rows")


def test_keys_lists_and_streams_are_read_with_their_figures(tmp_path: Path) -> None:
    with running_cluster(tmp_path, topology_text=TWO_KINDS) as cluster:
        cluster.put("counts", {b"a/b": b'{"n": 12345678901234567890}', b"k": b"1"})
        cluster.put("hours", {b"k" + (5_000).to_bytes(8, "big"): b"7"})
        cluster.start_workers(2)
        router = cluster.start_router()
        cluster.wait_settled(router)
        with console(router, tmp_path) as page:
            page.wait_for("document.getElementById('key-store').options.length === 2", "the stores")
            page.fill("#key-text", "a/b")
            page.click("#key-form button[type=submit]")
            page.wait_for(shows("record lag 0", "#key-answer .figures"), "the figures")
            # Exact, though it is no number of JavaScript's.
            assert "12345678901234567890" in page.text("#key-answer pre")
            assert '"explain"' not in page.text("#key-answer pre")
            steps = page.text("#key-explain")
            assert re.search(r"to be asked, in this order: \S+ \(active, record lag 0\); \S+ \(standby", steps)
            assert re.search(r"ms: (\S+) asked(?s:.*)ms: \1 answered 200(?s:.*)ms: the answer of \1 taken", steps)
            line = page.text("#key-answer code")
            answer = json.loads(subprocess.run(line, shell=True, capture_output=True, check=True).stdout)
            assert answer["key"] == "a/b"
            assert f"the active on {answer['host']}" in page.text("#key-answer")

            page.fill("#key-text", "nobody")
            page.click("#key-form button[type=submit]")
            page.wait_for(shows("404", "#key-answer .problem"), "the problem")
            assert "answered 404 unknown-key" in page.text("#key-explain")
            assert "took" in page.text("#key-answer .figures")
            page.complaints.clear()

            page.fill("#key-text", "k")
            page.click("#key-follow")
            page.wait_for(shows("value 1", ".changes"), "the value")
            cluster.put("counts", {b"k": b"12345678901234567890"})
            page.wait_for(shows("value 12345678901234567890", ".changes"), "the change, to the last digit")
            cluster.put("counts", {b"k": b"2"})
            page.wait_for(shows("value 2", ".changes"), "the next one")
            page.click("#key-follow")

            page.fill("#key-what", "entries")
            page.fill("#key-query", "limit=1")
            page.click("#key-form button[type=submit]")
            page.wait_for(shows("There is more", "#key-answer"), "a list")
            first = page.text("#key-answer pre")
            page.click("#key-next")
            page.wait_for(f"!{shows('There is more', '#key-answer')}", "its next page")
            assert '"a/b"' in first
            assert '"k"' in page.text("#key-answer pre")
            page.fill("#key-query", "")
            page.fill("#key-what", "value")
            page.fill("#key-text", "")
            page.click("#key-form button[type=submit]")
            page.wait_for(shows("Enter a key", "#key-answer"), "a request for a key")
            page.click("#key-follow")
            page.wait_for(shows('"k" = 2', ".changes"), "the changes of all keys")
            page.click("#key-follow")
            page.fill("#key-store", "hours")
            page.fill("#key-text", "k")
            page.click("#key-follow")
            page.wait_for(shows('"k" (5000 to 6000) = 7', ".changes"), "the changes of a key's windows")
            page.click("#key-follow")
            page.fill("#key-what", "windows")
            page.fill("#key-text", "k")
            page.click("#key-form button[type=submit]")
            page.wait_for(shows('"start_ms": 5000', "#key-answer pre"), "a window")


def test_tolerance_shows_candidates_and_rejected_reads(cluster: Cluster, tmp_path: Path) -> None:
    """The page shows who would answer within a bound and which reads it would have rejected."""
    cluster.put("counts", {b"k": b"1"})
    cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    row = "#tolerance-table tbody tr"
    with console(router, tmp_path) as page:
        page.wait_for(shows("8 of 8", row), "all replicas")
        for _ in range(20):
            assert httpx.get(f"http://{router}/v1/stores/counts/keys/k").status_code == 200
        assert httpx.get(f"http://{router}/v1/stores/counts/keys/k?max_age_ms=0").status_code == 412
        page.wait_for(shows("1 were refused", row), "the refusal")
        page.wait_for(shows("Refused in the last minute: lag-exceeds-tolerance 1", ".refused"), "its name")
        page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        tables = "[...document.querySelectorAll('details table')]"
        page.wait_for(f"{tables}.some((e) => e.innerText.includes('lag-exceeds-tolerance 1'))", "its name")
        page.fill("#tolerance-figure", "age_ms")
        page.fill("#tolerance-bound", "0")
        # Nothing was written for longer than that.
        page.wait_for(shows("0 of 4", row), "nobody")
        page.wait_for(f"document.querySelectorAll('{CELLS}.beyond').length === 4", "the grid")
        page.fill("#tolerance-bound", "11")
        page.wait_for(shows("0 %", row), "a wide bound")


def test_a_token_is_requested_and_kept_in_memory_only(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator {token_of('operator')}\n")
    tokens.chmod(0o600)
    secret = tmp_path / "token"
    secret.write_text(token_of("operator"))
    secret.chmod(0o600)
    headers = {"authorization": header_of("operator")}
    options = ("--auth-tokens-file", str(tokens))
    with running_cluster(tmp_path, headers=headers, worker_options=options) as cluster:
        cluster.put("counts", {b"k": b"1"})
        cluster.start_worker()
        router = cluster.start_router(*options, "--worker-token-file", str(secret))
        cluster.wait_settled(router, replicas=1)
        with console(router, tmp_path) as page:
            page.wait_for("!document.getElementById('token-form').hidden", "the field")
            page.wait_for(shows("This process needs a token", "#summary"), "the reason")
            assert not page.run("document.getElementById('tolerance').checkVisibility()")
            page.fill("#token", token_of("operator"))
            page.click("#token-form button")
            page.wait_for(f"document.querySelectorAll('{CELLS}.served').length === 4", "the grid")
            page.wait_for("document.getElementById('token-form').hidden", "the field to go")
            page.fill("#key-text", "k")
            page.click("#key-follow")
            page.wait_for(shows("value 1", ".changes"), "the stream")
            assert "$TOKEN" in page.text("#key-answer code")
            kept = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
            assert token_of("operator") not in page.run(kept)
            assert not any(token_of("operator") in url for url in page.requested)
            # Those are the answers without a token.
            page.complaints = [text for text in page.complaints if "401" not in text]


def test_a_worker_shows_its_own_replicas(cluster: Cluster, tmp_path: Path) -> None:
    cluster.put("counts", {b"k": b"1"})
    first, second = cluster.start_workers(2)
    cluster.wait_settled(cluster.start_router())
    with console(first, tmp_path) as page:
        page.wait_for(shows("are served by this worker", "#summary"), "the summary")
        page.wait_for(f"document.querySelectorAll('{CELLS}').length === 4", "its replicas")
        page.wait_for(shows("Nothing is wrong", "#verdict"), "all well")
        page.wait_for(shows("not counted here", "#tolerance-table tbody"), "no shares")
        assert all(first in label and second not in label for label in labels(page))


def test_page_is_for_allowed_hosts_and_loads_only_itself(cluster: Cluster) -> None:
    """The content security policy lets the page load nothing from elsewhere."""
    worker = cluster.start_worker()
    answer = httpx.get(f"http://{worker}/console")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert httpx.head(f"http://{worker}/console/console.css").status_code == 200
    for path in ("/", "/console/"):
        assert str(httpx.get(f"http://{worker}{path}", follow_redirects=True).url) == f"http://{worker}/console"
    elsewhere = httpx.get(f"http://{worker}/console", headers={"host": "rebound.example"})
    assert (elsewhere.status_code, elsewhere.json()["type"]) == (400, "urn:forebay:problem:host-not-allowed")


def axe_violations(page: Page) -> list[Any]:
    """What axe-core finds: rules that are broken, and where."""
    found: list[Any] = page.run(
        "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => "
        "violations.map(({id, nodes}) => [id, nodes.map((node) => node.html + node.failureSummary)]))"
    )
    return found


@pytest.mark.skipif(
    AXE is None, reason="NO ACCESSIBILITY TESTED: axe-core is missing; scripts/test gets it by npm"
)
def test_console_is_accessible_by_keyboard_and_on_a_phone(cluster: Cluster, tmp_path: Path) -> None:
    """In both themes axe finds no violation."""
    assert AXE is not None
    cluster.put("counts", {b"k": b"1"})
    workers = cluster.start_workers(2)
    router = cluster.start_router()
    cluster.wait_settled(router)
    with console(router, tmp_path) as page:
        page.wait_for(f"document.querySelectorAll('{CELLS}.served').length === 4", "the grid")
        page.run(AXE.read_text())
        cells = f"[...document.querySelectorAll('{CELLS}')]"
        page.run(f"{cells}[0].focus()")
        page.press("ArrowRight")
        page.press("Enter")
        page.wait_for(f"{cells}[1].ariaPressed === 'true'", "the chosen partition")
        page.wait_for(shows("Partition 1: served", ".detail"), "its replicas")
        page.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
        page.wait_for("document.querySelectorAll('.charts ~ details tbody tr').length > 12", "the tables")
        assert axe_violations(page) == []
        cluster.kill(workers[0])
        page.wait_for("document.querySelector('#findings li') !== null", "a finding")
        page.fill("#key-text", "k")
        page.click("#key-form button[type=submit]")
        page.wait_for(shows("record lag", "#key-answer"), "an answer")
        page.fill("#tolerance-bound", "0")
        page.theme("dark")
        assert axe_violations(page) == []
        page.as_phone()
        page.wait_for("document.documentElement.scrollWidth <= 390", "a page as wide as the phone")
        assert axe_violations(page) == []


def test_twenty_thousand_tasks_open_at_once(tmp_path: Path) -> None:
    port, workers = free_port(), 40
    command = [sys.executable, "-m", "bench.simulated_workers", str(workers), "20000", str(port)]
    with running_cluster(tmp_path) as cluster:
        simulated = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        try:
            assert simulated.stdout is not None
            assert simulated.stdout.readline() == b"ready\n"
            router = cluster.start_router("--seeds", f"127.1.0.1:{port}")
            wait_until(
                lambda: (
                    cluster.get(router, "/v1/health")["stores"][:1] == []
                    or cluster.get(router, "/v1/health")["stores"][0]["conditions"] == {"served": 20_000}
                ),
                "a survey of all",
                60,
            )
            with browser_page(tmp_path) as page:
                page.send(
                    "Page.addScriptToEvaluateOnNewDocument",
                    source="new MutationObserver(() => { if (document.querySelector('.cell.served')) "
                    "window.openedMs ??= performance.now(); }).observe(document, {childList: true, subtree: true, "
                    "attributes: true})",
                )
                took_ms = []
                # The best of some, and a multiple of what it takes alone: this machine has other things to do.
                for _ in range(5):
                    page.open(f"http://{router}/console")
                    page.wait_for("window.openedMs", "the first partitions")
                    took_ms.append(page.run("window.openedMs"))
                assert min(took_ms) < 3_000, took_ms
                page.wait_for(shows("with 20,000 partitions", "#summary"), "the summary")
                page.fill("article input[type=number]", "19999")
                page.click("article button[type=submit]")
                page.wait_for(shows("19800 to 19999", ".range"), "the last page")
                page.wait_for(shows("Partition 19999: served", ".detail"), "the last partition")
                assert page.run("document.querySelectorAll('.cell').length") == 200
                assert page.complaints == []
        finally:
            simulated.kill()
            simulated.communicate()
