"""The router in front of a worker, against other proxies in front of the same worker."""

from __future__ import annotations

from collections.abc import Callable

from bench import opponents
from bench.comparison import Effort
from bench.deployment import STORE, served
from bench.figures import Row, Target, interleaved
from bench.single_key import rate
from bench.wrk import Requests, load

_PATH = f"/v1/stores/{STORE}/keys/"
_HAPROXY = "HAProxy, one thread"


def haproxy(effort: Effort) -> list[Row]:
    with (
        served(effort.directory, router=True) as (_, worker, router, keys),
        opponents.haproxy(effort.directory, worker) as proxy,
    ):
        requests = Requests.of(effort.directory / "keys", _PATH, keys)
        rows = []
        for connections, bound in ((32, 0.8), (128, 1.1)):
            ours, theirs = interleaved(
                effort.rounds,
                rate(effort, router, requests, connections),
                rate(effort, proxy, requests, connections),
            )
            what = f"router hop, {connections} connections, random keys"
            rows.append(Row(what, "requests/s", ours, _HAPROXY, theirs, Target(bound)))
        return rows


def added_latency(effort: Effort) -> list[Row]:
    with (
        served(effort.directory, router=True) as (_, worker, router, keys),
        opponents.haproxy(effort.directory, worker) as proxy,
    ):
        requests = Requests.of(effort.directory / "keys", _PATH, keys)
        direct, ours, theirs = interleaved(
            effort.rounds, *(_median_ms(effort, address, requests) for address in (worker, router, proxy))
        )
        return [
            Row(
                "latency that the router adds, one connection, p50",
                "ms",
                tuple(a - b for a, b in zip(ours, direct, strict=True)),
                _HAPROXY,
                tuple(a - b for a, b in zip(theirs, direct, strict=True)),
                Target(1.2, at_least=False),
            )
        ]


def httpx_proxy(effort: Effort) -> list[Row]:
    return _python_proxy(effort, "httpx_proxy", "FastAPI + httpx, one shared client", Target(100))


def aiohttp_proxy(effort: Effort) -> list[Row]:
    return _python_proxy(effort, "aiohttp_proxy", "FastAPI + aiohttp, one shared session", Target(10))


def _python_proxy(effort: Effort, app: str, against: str, target: Target) -> list[Row]:
    with (
        served(effort.directory, router=True) as (_, worker, router, keys),
        opponents.asgi(app, BENCH_UPSTREAM=f"http://{worker}") as proxy,
    ):
        requests = Requests.of(effort.directory / "keys", _PATH, keys)
        ours, theirs = interleaved(
            effort.rounds, *(rate(effort, address, requests) for address in (router, proxy))
        )
        return [Row("router hop, 32 connections, random keys", "requests/s", ours, against, theirs, target)]


def _median_ms(effort: Effort, address: str, requests: Requests) -> Callable[[], float]:
    return lambda: load(address, requests, connections=1, seconds=effort.seconds).p50_ms
