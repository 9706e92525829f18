"""Pages of static files, which contain no data, under a policy that lets them load nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources.abc import Traversable

from fastapi import FastAPI
from fastapi.responses import Response

_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "png": "image/png",
    "svg": "image/svg+xml",
}


def add_page(app: FastAPI, path: str, files: Iterable[Traversable], images: str = "'self'") -> None:
    """Serve a page and, below its path, what it loads; none of that is in the OpenAPI document.

    ``images`` are the sources of images that the page's policy allows. Its links are relative, as a proxy may have
    it below a path of its own.
    """
    headers = {
        "content-security-policy": f"default-src 'none'; script-src 'self'; style-src 'self'; img-src {images}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    for file in files:
        _add(app, path, file, headers)


def _add(app: FastAPI, path: str, file: Traversable, headers: dict[str, str]) -> None:
    _, _, ending = file.name.rpartition(".")

    def answer() -> Response:
        return Response(file.read_bytes(), media_type=_TYPES[ending], headers=headers)

    place = path if ending == "html" else f"{path}/{file.name}"
    app.add_api_route(place, answer, methods=["GET", "HEAD"], include_in_schema=False)
