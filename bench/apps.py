"""The ASGI applications that forebay is compared with; each factory reads its configuration from the
environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from bench.credentials import AUTHORIZATION
from fastapi import FastAPI, Request, Response

_HEADERS = {"authorization": AUTHORIZATION}
Asgi = Callable[[dict[str, Any], Callable[[], Awaitable[Any]], Callable[[dict[str, Any]], Awaitable[None]]], Any]


def constant() -> Asgi:
    """Raw ASGI: always the same body."""
    body = os.environ["BENCH_BODY"].encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return app


def redis_lookup() -> FastAPI:
    """The usual way to serve a key: FastAPI, redis-py, Redis."""
    from redis.asyncio import Redis

    client = Redis.from_url(os.environ["BENCH_REDIS"], decode_responses=True)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await client.set("key", os.environ["BENCH_BODY"])
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.get("/keys/{key}")
    async def read(key: str) -> dict[str, str | None]:
        return {"key": key, "value": await client.get(key)}

    return app


def httpx_proxy() -> FastAPI:
    """A proxy of FastAPI and one shared httpx client."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    client = httpx.AsyncClient(base_url=os.environ["BENCH_UPSTREAM"], limits=limits, timeout=10, headers=_HEADERS)
    app = FastAPI()

    @app.get("/{path:path}")
    async def forward(request: Request) -> Response:
        answer = await client.get(request.scope["raw_path"].decode())
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

    return app


def aiohttp_proxy() -> FastAPI:
    """A proxy of FastAPI and one shared aiohttp session."""
    import aiohttp

    sessions: list[aiohttp.ClientSession] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(os.environ["BENCH_UPSTREAM"], headers=_HEADERS) as session:
            sessions.append(session)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/{path:path}")
    async def forward(request: Request) -> Response:
        async with sessions[0].get(request.scope["raw_path"].decode()) as answer:
            return Response(await answer.read(), answer.status, media_type=answer.content_type)

    return app
