"""The page ``/console``: static files that contain no data."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response

from forebay_web.request_guard import CONSOLE_PATH
from forebay_web.static_files import add_page


def add_console_page(app: FastAPI) -> None:
    """Serve the page and what it loads, none of which is in the OpenAPI document."""
    add_page(app, CONSOLE_PATH, (files("forebay_console") / "static").iterdir())
    # Relative, since a proxy may have put a prefix before all paths.
    for path, console in (("/", "console"), (f"{CONSOLE_PATH}/", "../console")):
        app.add_api_route(path, _redirect_to(console), include_in_schema=False)


def _redirect_to(location: str) -> Callable[[], Response]:
    return lambda: RedirectResponse(location)
