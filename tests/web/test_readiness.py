"""``/readyz`` says that a process is not ready to everybody, and why to those who may know."""

import json
import logging
from collections import Counter
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from forebay.bearer_tokens import TokensFile
from forebay.errors import NotReady, Problem
from forebay.logs import JsonFormatter
from forebay.streams_metadata import HostInfo
from forebay_web.application import make_application
from forebay_web.hosts import allowed_hosts
from forebay_web.tickets import Tickets, make_ticket_key
from tests.support.tokens import header_of, token_of


async def not_ready() -> Problem | None:
    return NotReady("The disk of worker-7 is full.", retry_after_s=1, behind=["orders-3"])


async def no_metrics() -> Collector:
    return CollectorRegistry()  # type: ignore[return-value]


def application(tokens: Path | None = None) -> FastAPI:
    authenticator = None if tokens is None else TokensFile(tokens)
    return make_application(
        "router",
        cors_allow_origins=(),
        ready=not_ready,
        metrics=no_metrics,
        authenticator=authenticator,
        tickets=Tickets(make_ticket_key, authenticator),
        hosts=allowed_hosts([HostInfo("127.0.0.1", 1)], ("here",)),
        refusals=Counter(),
    )


async def readyz(tokens: Path | None, headers: dict[str, str]) -> httpx.Response:
    app = application(tokens)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        return await client.get("/readyz", headers=headers)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_without_a_token_it_is_only_the_status(tmp_path, headers):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {token_of('ann')}")
    answer = await readyz(tokens, headers)
    assert answer.status_code == 503
    assert "worker-7" not in answer.text
    assert "orders" not in answer.text


async def test_a_page_whose_name_was_rebound_gets_the_status_alone(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {token_of('ann')}")
    for answer in (
        await readyz(tokens, {"host": "evil.example", "authorization": header_of("ann")}),
        await readyz(None, {"host": "evil.example"}),
    ):
        assert answer.status_code == 503
        assert "worker-7" not in answer.text


async def test_with_a_token_or_where_none_is_needed_it_says_why(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {token_of('ann')}")
    for answer in (await readyz(tokens, {"authorization": header_of("ann")}), await readyz(None, {})):
        assert answer.status_code == 503
        assert answer.json()["behind"] == ["orders-3"]


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "order-66"}])
async def test_a_failure_and_its_line_have_one_id(caplog, monkeypatch, headers):
    """That of the request, or one that is made then."""
    app, ids = application(), []

    @app.get("/fails")
    async def fails() -> None:
        raise RuntimeError("disk full")

    class Ids(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            ids.append(json.loads(JsonFormatter().format(record))["request_id"])
            return True

    monkeypatch.setattr(caplog.handler, "filters", [Ids()])
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        answer = await client.get("/fails", headers=headers)
    assert (answer.status_code, answer.json()["request_id"]) == (500, answer.headers["x-request-id"])
    assert ids == [answer.headers["x-request-id"]]
    assert ids == [headers["x-request-id"]] if headers else len(ids[0]) == 32
