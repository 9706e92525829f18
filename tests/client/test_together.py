"""Plans that an asynchronous client carries out at once, and a blocking one in turn."""

import asyncio

import httpx
import pytest

from forebay.errors import NoReplica
from forebay_client.async_connections import AsyncConnections
from forebay_client.async_driver import AsyncDriver
from forebay_client.connections import Connections
from forebay_client.driver import Driver
from forebay_client.exchange import Pause, Plan, Send, together

TIMEOUT = httpx.Timeout(5)


def requested(number: int, answers: list[str]) -> Plan[None]:
    reply = yield Send("GET", f"http://w/{number}", None, TIMEOUT)
    assert isinstance(reply, httpx.Response)
    answers.append(reply.text)


async def test_plans_of_an_asynchronous_client_wait_together():
    waiting, all_there = [], asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        waiting.append(request.url.path)
        if len(waiting) == 3:
            all_there.set()
        await all_there.wait()
        return httpx.Response(200, text=request.url.path)

    driver = AsyncDriver(AsyncConnections(transport=httpx.MockTransport(answer)))
    answers: list[str] = []
    async with asyncio.timeout(10):
        await driver.run(together([requested(number, answers) for number in range(3)], at_once=3))
    assert sorted(answers) == ["/0", "/1", "/2"]
    await driver.aclose()


async def test_the_first_plan_that_fails_ends_the_others():
    def forever() -> Plan[None]:
        yield Pause(1_000)

    def failing() -> Plan[None]:
        yield Pause(0)
        raise NoReplica("nobody")

    driver = AsyncDriver(AsyncConnections(transport=httpx.MockTransport(lambda _: httpx.Response(200))))
    before = asyncio.all_tasks()
    async with asyncio.timeout(10):
        with pytest.raises(NoReplica, match="nobody"):
            await driver.run(together([forever(), failing()], at_once=2))
    assert asyncio.all_tasks() == before
    await driver.aclose()


def test_plans_of_a_blocking_client_are_carried_out_in_turn():
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return httpx.Response(200, text=request.url.path)

    driver = Driver(Connections(transport=httpx.MockTransport(answer)))
    answers: list[str] = []
    driver.run(together([requested(number, answers) for number in range(3)], at_once=2))
    assert answers == paths == ["/0", "/1", "/2"]
    driver.close()
