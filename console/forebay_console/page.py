"""The page ``/console``: static files that contain no data, under a policy that lets them load nothing else."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response

from forebay_web.request_guard import CONSOLE_PATH

_FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "charts.js": "text/javascript",
    "grid.js": "text/javascript",
    "keys.js": "text/javascript",
    "requests.js": "text/javascript",
    "text.js": "text/javascript",
    "tolerance.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_console_page(app: FastAPI) -> None:
    """Serve the page and what it loads, none of which is in the OpenAPI document."""
    _add(app, CONSOLE_PATH, "console.html", "text/html")
    # Relative, since a proxy may have put a prefix before all paths.
    for path, console in (("/", "console"), (f"{CONSOLE_PATH}/", "../console")):
        app.add_api_route(path, _redirect_to(console), include_in_schema=False)
    for name, media_type in _FILES.items():
        _add(app, f"{CONSOLE_PATH}/{name}", name, media_type)


def _redirect_to(location: str) -> Callable[[], Response]:
    return lambda: RedirectResponse(location)


def _add(app: FastAPI, path: str, name: str, media_type: str) -> None:
    content = (files("forebay_console") / "static" / name).read_bytes()

    def answer() -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)
