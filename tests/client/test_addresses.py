"""Names of which some addresses drop every packet: the backlog of a listener that nobody accepts from is full."""

import asyncio
import gc
import socket
import time
from collections.abc import Iterator
from typing import Any

import click.testing
import pytest

from forebay import errors
from forebay.client import AsyncClient, Client
from forebay.happy_eyeballs import Address, attempt_delay_s, in_turn
from forebay_client.query_command import query
from forebay_client.status_command import status
from tests.support.answering_server import AnsweringServer, answering_server
from tests.support.cluster import Cluster, free_port
from tests.support.names import NAME, dropping, infos, resolve

__all__ = ["resolve"]


def test_address_families_alternate_without_duplicates():
    """The resolver's order is kept within each family."""
    found = infos("2001:db8::1", "2001:db8::2", "2001:db8::3", "192.0.2.1", "192.0.2.1")
    assert [address.host for address in in_turn(found)] == [
        "2001:db8::1",
        "192.0.2.1",
        "2001:db8::2",
        "2001:db8::3",
    ]
    assert in_turn(infos("192.0.2.9"))[0] == Address(socket.AF_INET, ("192.0.2.9", 80))
    assert in_turn([]) == []


@pytest.mark.parametrize(
    ("timeout_s", "addresses", "delay_s"), [(None, 3, 0.25), (5.0, 2, 0.25), (0.3, 3, 0.1), (0.3, 0, 0.25)]
)
def test_all_addresses_are_tried_within_the_time(timeout_s, addresses, delay_s):
    assert attempt_delay_s(timeout_s, addresses) == pytest.approx(delay_s)


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with answering_server() as server:
        yield server


def blocking(url: str, timeout_ms: int) -> Any:
    with Client(url, timeout_ms=timeout_ms) as client:
        return client.get("s", "a").value


def awaited(url: str, timeout_ms: int) -> Any:
    async def read() -> Any:
        async with AsyncClient(url, timeout_ms=timeout_ms) as client:
            return (await client.get("s", "a")).value

    return asyncio.run(read())


CALLS = pytest.mark.parametrize("call", [blocking, awaited])


@CALLS
@pytest.mark.parametrize(("timeout_ms", "delay_s"), [(3_000, 60.0), (20_000, 0.25)])
def test_addresses_that_drop_packets_cost_a_share_of_the_time(
    call, timeout_ms, delay_s, server, resolve, monkeypatch
):
    monkeypatch.setattr("forebay.happy_eyeballs._ATTEMPT_DELAY_S", delay_s)
    port = server.server_address[1]
    resolve("127.0.0.2", "127.0.0.3", "127.0.0.1")
    with dropping("127.0.0.2", port), dropping("127.0.0.3", port):
        started_s = time.monotonic()
        assert call(f"http://{NAME}:{port}", timeout_ms) == "a"
        assert time.monotonic() < started_s + 5


@CALLS
def test_an_address_that_refuses_costs_nothing(call, server, resolve, monkeypatch):
    monkeypatch.setattr("forebay.happy_eyeballs._ATTEMPT_DELAY_S", 60.0)
    resolve("127.0.0.2", "127.0.0.1")
    assert call(f"http://{NAME}:{server.server_address[1]}", 100_000) == "a"


@CALLS
def test_what_became_of_each_address_is_said(call, resolve):
    port = free_port()
    resolve("127.0.0.2", "127.0.0.3")
    with dropping("127.0.0.2", port), pytest.raises(errors.Problem) as info:
        call(f"http://{NAME}:{port}", 500)
    outcomes = [attempt["outcome"] for attempt in info.value.members["attempts"]]
    assert any("127.0.0.2: timed out" in outcome for outcome in outcomes), outcomes
    assert any("127.0.0.3: " in outcome and "refused" in outcome for outcome in outcomes), outcomes
    with pytest.raises(errors.NoReplica, match=r"127\.0\.0\.2: .*refused; 127\.0\.0\.3: .*refused"):
        call(f"http://{NAME}:{port}", 5_000)


@CALLS
def test_a_name_that_cannot_be_resolved_is_said(call):
    with pytest.raises(errors.NoReplica, match="ConnectError"):
        call("http://nothing.invalid", 5_000)


def test_no_socket_of_a_lost_race_is_left_open(server, resolve):
    port = server.server_address[1]
    resolve("127.0.0.2", "127.0.0.1")
    with dropping("127.0.0.2", port):
        before = sockets_to("127.0.0.2", port)
        with Client(f"http://{NAME}:{port}") as client:
            client.get("s", "a")
            assert sockets_to("127.0.0.2", port) == before
    assert before


def sockets_to(host: str, port: int) -> int:
    """How many sockets of this machine are, or are about to be, connected to an address."""
    packed = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"
    with open("/proc/net/tcp") as table:
        return sum(line.split()[2] == packed for line in table.readlines()[1:])


@pytest.mark.parametrize(("command", "arguments"), [(query, ["counts", "a"]), (status, [])])
def test_commands_reach_the_address_that_answers(command, arguments, cluster: Cluster, resolve):
    cluster.put("counts", {b"a": b"1"})
    port = int(cluster.start_worker(None, "--allowed-hosts", NAME).rsplit(":", 1)[1])
    resolve("127.0.0.2", "127.0.0.1")
    with dropping("127.0.0.2", port):
        started_s = time.monotonic()
        result = click.testing.CliRunner().invoke(command, [*arguments, "--url", f"http://{NAME}:{port}"])
        assert result.exit_code == 0, result.output
        assert time.monotonic() < started_s + 5


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
