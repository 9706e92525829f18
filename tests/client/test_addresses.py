"""Names of which some addresses drop every packet: the backlog of a listener that nobody accepts from is full."""

import asyncio
import gc
import time
from collections.abc import Iterator
from typing import Any

import click.testing
import pytest

from forebay import errors
from forebay.client import AsyncClient, Client
from forebay_client.query_command import query
from forebay_client.status_command import status
from tests.support.answering_server import AnsweringServer, answering_server
from tests.support.cluster import Cluster, free_port
from tests.support.names import NAME, dropping, resolve

__all__ = ["resolve"]


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with answering_server() as server:
        yield server


def blocking(urls: str | list[str], timeout_ms: int) -> Any:
    with Client(urls, timeout_ms=timeout_ms) as client:
        return client.get("s", "a").value


def awaited(urls: str | list[str], timeout_ms: int) -> Any:
    async def read() -> Any:
        async with AsyncClient(urls, timeout_ms=timeout_ms) as client:
            return (await client.get("s", "a")).value

    return asyncio.run(read())


CALLS = pytest.mark.parametrize("call", [blocking, awaited])


@CALLS
def test_an_address_that_drops_packets_costs_a_share_of_the_time(call, server, resolve):
    port = server.server_address[1]
    resolve("127.0.0.2", "127.0.0.1")
    with dropping("127.0.0.2", port):
        started_s = time.monotonic()
        assert call(f"http://{NAME}:{port}", 6_000) == "a"
        assert time.monotonic() < started_s + 5


@CALLS
def test_a_server_that_drops_packets_costs_a_third_of_the_time(call, server):
    port = free_port()
    with dropping("127.0.0.2", port):
        started_s = time.monotonic()
        assert call([f"http://127.0.0.2:{port}", server.url], 9_000) == "a"
        assert time.monotonic() < started_s + 4.4


@CALLS
def test_an_address_that_refuses_costs_nothing(call, server, resolve):
    resolve("127.0.0.2", "127.0.0.1")
    assert call(f"http://{NAME}:{server.server_address[1]}", 100_000) == "a"


@CALLS
def test_a_name_that_cannot_be_resolved_is_said(call):
    with pytest.raises(errors.NoReplica, match="ConnectError"):
        call("http://nothing.invalid", 5_000)


@pytest.mark.parametrize(("command", "arguments"), [(query, ["counts", "a"]), (status, [])])
def test_commands_reach_the_address_that_answers(command, arguments, cluster: Cluster, resolve):
    cluster.put("counts", {b"a": b"1"})
    port = int(cluster.start_worker(None, "--allowed-hosts", NAME).rsplit(":", 1)[1])
    resolve("127.0.0.2", "127.0.0.1")
    with dropping("127.0.0.2", port):
        result = click.testing.CliRunner().invoke(command, [*arguments, "--url", f"http://{NAME}:{port}"])
        assert result.exit_code == 0, result.output


async def test_a_cancelled_read_leaves_nothing_in_the_log():
    """Though what waits for its end is cancelled too, before its first step."""
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["message"]))
    port = free_port()
    with dropping("127.0.0.1", port):
        async with AsyncClient(f"http://127.0.0.1:{port}", timeout_ms=300) as client:
            reading = asyncio.create_task(client.get("s", "a"))
            await asyncio.sleep(0.05)
            before = asyncio.all_tasks()
            connecting = before - {asyncio.current_task(), reading}
            reading.cancel()
            await asyncio.sleep(0)
            waiting = asyncio.all_tasks() - before
            assert connecting
            assert waiting
            for task in waiting:
                task.cancel()
            del reading, before, waiting, task
            await asyncio.wait(connecting)
            del connecting
            gc.collect()
            await asyncio.sleep(0)
    assert faults == []
