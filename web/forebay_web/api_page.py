"""A page of the whole API, by Swagger UI, which loads nothing from elsewhere.

FastAPI's own has scripts of another host run in it: whoever holds that host could read with the reader's rights.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

_PATH = "/docs"
_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
"""Those of the package ``fastapi_offline`` that the page needs, and their types."""
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
# Relative, as a proxy may have the API below a path of its own.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>%s</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""


def add_api_page(app: FastAPI) -> None:
    """Serve the page and what it loads, none of which is in the OpenAPI document."""
    _add(app, _PATH, _PAGE % escape(app.title), "text/html")
    _add(app, f"{_PATH}/start.js", _START, "text/javascript")
    for name, media_type in _FILES.items():
        _add(app, f"{_PATH}/{name}", None, media_type)


def _add(app: FastAPI, path: str, text: str | None, media_type: str) -> None:
    def answer() -> Response:
        content = _asset(path.rpartition("/")[2]) if text is None else text
        return Response(content, media_type=media_type, headers=_HEADERS)

    app.add_api_route(path, answer, methods=["GET", "HEAD"], include_in_schema=False)


def _asset(name: str) -> bytes:
    return (files("fastapi_offline") / "static" / name).read_bytes()
