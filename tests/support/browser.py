"""A real headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.support.cluster import wait_until

CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
_PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


class Page:
    """One page: what it shows, what it logs, and what it was refused by its policy."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        """Errors, failed requests and violations of the Content-Security-Policy."""
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; returns its result."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=30))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._on_event(message.get("method", ""), message.get("params", {}))

    def _on_event(self, method: str, parameters: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(parameters["exceptionDetails"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.complaints.append(parameters["entry"]["text"])
            case "Audits.issueAdded" if "ContentSecurityPolicy" in parameters["issue"]["code"]:
                self.complaints.append(json.dumps(parameters["issue"]))
            case "Network.requestWillBeSent":
                self.requested.append(parameters["request"]["url"])

    def open(self, url: str) -> None:
        """Go to an address."""
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text shown by the first element, nothing if there is none."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_for(self, script: str, what: str, deadline_s: float = 30.0) -> None:
        """Wait until an expression is true."""
        try:
            # What it is about may not be there yet.
            wait_until(
                lambda: self.run(f"(() => {{ try {{ return Boolean({script}) }} catch {{ }} }})()"),
                what,
                deadline_s,
            )
        except AssertionError:
            raise AssertionError(f"{what}; the page:\n{self.text('body')}\n{self.complaints}") from None

    def fill(self, selector: str, text: str) -> None:
        """Type into a field, or choose in a list or on a slider."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(
            f"{found}.value = {json.dumps(text)}; for (const type of ['input', 'change']) "
            f"{found}.dispatchEvent(new Event(type, {{bubbles: true}}))"
        )

    def click(self, selector: str) -> None:
        """Press a button."""
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37}[key]
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def theme(self, theme: str) -> None:
        """Show it as to somebody who prefers ``light`` or ``dark``."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def resize(self, width: int, height: int) -> None:
        """Give the window a size in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def as_phone(self) -> None:
        """Show it as on a phone."""
        self.send("Emulation.setDeviceMetricsOverride", **_PHONE)

    def picture(self, path: Path) -> None:
        """Save what the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browser_page(directory: Path) -> Iterator[Page]:
    """A browser with one empty page; it ends with the block."""
    profile = directory / "profile"
    switches = [*SWITCHES, f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    switches += ["--remote-allow-origins=*", "--hide-scrollbars"]
    with (directory / "chromium.log").open("wb") as log:
        process = subprocess.Popen([CHROMIUM, *switches, "about:blank"], stdout=log, stderr=log)
    try:
        with connect(_debugger(profile), max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.wait(20)


def _debugger(profile: Path) -> str:
    """The address of the page's protocol."""
    port_file = profile / "DevToolsActivePort"
    wait_until(lambda: port_file.exists() and port_file.read_text().count("\n"), "the browser's start", 30)
    port = port_file.read_text().split("\n")[0]
    pages: list[dict[str, Any]] = []

    def found() -> bool:
        pages[:] = [page for page in httpx.get(f"http://127.0.0.1:{port}/json").json() if page["type"] == "page"]
        return bool(pages)

    wait_until(found, "a page of the browser", 30)
    return str(pages[0]["webSocketDebuggerUrl"])
