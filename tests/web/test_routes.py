"""What all read routes do, whichever tier they are of."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from forebay_web.routes import READ_ROUTES, add_read_route, crashes_counted


@pytest.mark.parametrize(
    ("error", "counted"),
    [(RuntimeError("a bug"), [500]), (asyncio.CancelledError(), [])],
)
async def test_failed_read_is_counted_as_a_500(error, counted):
    """A read whose client left is not counted."""
    answers: list[tuple[str, int]] = []
    app, route = FastAPI(), READ_ROUTES[0]

    async def fail(request: Request) -> Response:
        raise error

    add_read_route(app, route, (), crashes_counted(route.path, fail, lambda *answer: answers.append(answer)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        with pytest.raises(type(error)):
            await client.get("/v1/stores/s/keys/k")
    assert answers == [(route.path, status) for status in counted]


async def test_a_read_whose_client_left_is_not_counted_and_not_logged(caplog):
    answers: list[tuple[str, int]] = []
    app, route = FastAPI(), READ_ROUTES[0]

    async def leave(request: Request) -> Response:
        raise ClientDisconnect

    add_read_route(app, route, (), crashes_counted(route.path, leave, lambda *answer: answers.append(answer)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        assert (await client.get("/v1/stores/s/keys/k")).status_code == 499
    assert (answers, caplog.records) == ([], [])
