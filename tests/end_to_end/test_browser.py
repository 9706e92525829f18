"""A page of another origin follows a key in a real browser."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, SWITCHES, browser_page
from tests.support.cluster import Cluster, wait_until

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no browser: {CHROMIUM} is missing")

PAGE = """<!doctype html><body><p id="value"></p><script>
const shown = document.getElementById("value");
const changes = new EventSource("URL");
function show(text) { shown.textContent = text; fetch("/shown", {method: "POST", body: shown.textContent}); }
changes.addEventListener("value", (event) => show(JSON.parse(event.data).value));
changes.addEventListener("absent", () => show("none"));
changes.addEventListener("problem", (event) => show(JSON.parse(event.data).type));
</script>"""


class Dashboard(ThreadingHTTPServer):
    """Serves the page, and hears from it what it shows."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.shown: list[str] = []
        self.page = b""
        self.origin = f"http://127.0.0.1:{self.server_port}"

    def wait_for(self, text: str) -> None:
        wait_until(lambda: self.shown and self.shown[-1] == text, f"the page's {text!r} (shown: {self.shown})", 60)


class Answering(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        self._answer(self.server.page if self.path.partition("?")[0] == "/" else b"")

    def do_POST(self) -> None:
        self.server.shown.append(self.rfile.read(int(self.headers["content-length"])).decode())
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def browser(url: str, directory: Path) -> Iterator[None]:
    switches = [*SWITCHES, f"--user-data-dir={directory}", "--remote-debugging-port=0"]
    with (directory.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen([CHROMIUM, *switches, url], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def test_an_event_source_shows_a_value_that_changes(cluster: Cluster, tmp_path: Path) -> None:
    dashboard = Dashboard()
    serving = threading.Thread(target=dashboard.serve_forever)
    serving.start()
    try:
        cluster.put("counts", {b"k": None})
        cluster.start_worker()
        router = cluster.start_router("--cors-allow-origins", dashboard.origin)
        url = f"http://{router}/v1/stores/counts/keys/k/changes"
        dashboard.page = PAGE.replace("URL", url).encode()
        profile = tmp_path / "profile"
        profile.mkdir()
        with browser(dashboard.origin, profile):
            dashboard.wait_for("none")
            cluster.put("counts", {b"k": b"1"})
            dashboard.wait_for("1")
            cluster.put("counts", {b"k": b"2"})
            dashboard.wait_for("2")
    finally:
        dashboard.shutdown()
        dashboard.server_close()
        serving.join()


def test_dashboard_example_follows_a_prefix(cluster: Cluster, tmp_path: Path) -> None:
    """It needs one connection."""
    dashboard = Dashboard()
    dashboard.page = (Path(__file__).parents[2] / "examples" / "dashboard" / "index.html").read_bytes()
    serving = threading.Thread(target=dashboard.serve_forever)
    serving.start()
    try:
        cluster.put("counts", {b"ua": b"1", b"ub": b'{"n":2}', b"x": b"3"})
        cluster.start_worker()
        router = cluster.start_router("--cors-allow-origins", dashboard.origin)
        with browser_page(tmp_path) as page:
            page.open(f"{dashboard.origin}/?router=http://{router}&store=counts&prefix=u")
            rows = "[...document.querySelectorAll('#rows tr')].map((row) => row.innerText).sort().join()"
            page.wait_for(f"{rows} === 'ua\\t1,ub\\t{{\"n\":2}}'", "the state")
            page.wait_for("document.getElementById('lag').innerText.startsWith('As of ')", "its age")
            cluster.put("counts", {b"ua": b"4", b"ub": None, b"uc": b"5", b"x": b"6"})
            page.wait_for(f"{rows} === 'ua\\t4,uc\\t5'", "the changes")
            streams = [url for url in page.requested if "/changes" in url]
            assert len(streams) == 1
            assert not page.complaints
    finally:
        dashboard.shutdown()
        dashboard.server_close()
        serving.join()


def test_the_page_of_the_api_is_drawn_within_its_policy(cluster: Cluster, tmp_path: Path) -> None:
    worker = cluster.start_worker()
    switches = [*SWITCHES, f"--user-data-dir={tmp_path / 'profile'}"]
    switches += ["--enable-logging=stderr", "--virtual-time-budget=20000"]
    drawn = subprocess.run(
        [CHROMIUM, *switches, "--dump-dom", f"http://{worker}/docs"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert 'data-path="/v1/stores/{store}/keys/{key}"' in drawn.stdout
    assert "Content Security Policy" not in drawn.stderr
