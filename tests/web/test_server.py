import subprocess
import sys

import pytest
from fastapi import FastAPI

from forebay.errors import ListenAddressInUse
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from forebay_web.server import advertised
from tests.support.cluster import free_port
from tests.support.serving import serve_application

HANGS = """
import asyncio, contextlib, os, signal, threading
from fastapi import FastAPI
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from tests.support.serving import serve_application
@contextlib.asynccontextmanager
async def lifespan(app):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    yield

with bind(HostInfo("127.0.0.1", 0)) as listener:
    times = {"drain_ms": 0, "shutdown_timeout_ms": 1500}
    serve_application(FastAPI(lifespan=lifespan), listener, **times)
    print("served", flush=True)
    threading.Event().wait(60)
"""


def test_a_process_that_hangs_at_its_end_just_ends():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "served\n"
    assert done.returncode == 1
    assert "shutdown_timeout_ms" in done.stderr


ENDED_AT_ONCE = """
import asyncio, contextlib, os, signal
from fastapi import FastAPI
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from tests.support.serving import serve_application
@contextlib.asynccontextmanager
async def lifespan(app):
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
    yield
    print("ended", flush=True)

def again():
    # Two of a kind that wait together are one.
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

with bind(HostInfo("127.0.0.1", 0)) as listener:
    times = {"drain_ms": 60_000, "shutdown_timeout_ms": 120_000}
    serve_application(FastAPI(lifespan=lifespan), listener, on_drain=again, **times)
"""


def test_a_second_signal_ends_a_process_at_once_and_in_order():
    command = [sys.executable, "-c", ENDED_AT_ONCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n")
    assert "Traceback" not in done.stderr


WITHOUT_A_THREAD = """
import asyncio, contextlib, os, signal, threading
from fastapi import FastAPI
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from tests.support.serving import serve_application
@contextlib.asynccontextmanager
async def lifespan(app):
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
    yield
    print("ended", flush=True)

def refuse(thread):
    raise RuntimeError("can't start new thread")

threading.Timer.start = refuse
with bind(HostInfo("127.0.0.1", 0)) as listener:
    times = {"drain_ms": 0, "shutdown_timeout_ms": 1500}
    serve_application(FastAPI(lifespan=lifespan), listener, **times)
"""


def test_signal_is_handled_without_a_spare_thread():
    command = [sys.executable, "-c", WITHOUT_A_THREAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n")


def test_of_two_that_start_at_one_address_one_says_so_and_ends():
    listen = HostInfo("127.0.0.1", free_port())
    with bind(listen) as first, bind(listen) as second:
        # Nobody listened yet.
        first.listen()
        with pytest.raises(ListenAddressInUse, match=f"Cannot listen on {listen}: Address already in use"):
            serve_application(FastAPI(), second, drain_ms=0, shutdown_timeout_ms=2000)


COME_AT_ONCE = """
import asyncio, os, signal, socket
from fastapi import FastAPI
from forebay.streams_metadata import HostInfo
from forebay_web.listeners import bind
from tests.support.serving import serve_application

class Counted(asyncio.Protocol):
    turns = connections = 0

    def __init__(self, **config):
        pass

    def connection_made(self, transport):
        Counted.connections += 1
        if Counted.connections == 1:
            Counted.turn()
        if Counted.connections == 80:
            print(Counted.turns, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        transport.close()

    @classmethod
    def turn(cls):
        cls.turns += 1
        asyncio.get_running_loop().call_soon(cls.turn)

with bind(HostInfo("127.0.0.1", 0)) as listener:
    listener.listen(100)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(80)]
    times = {"drain_ms": 0, "shutdown_timeout_ms": 5000}
    serve_application(FastAPI(), listener, Counted, **times)
"""


def test_simultaneous_clients_are_accepted_together():
    """Clients that connect at once do not wait for a turn of the event loop each."""
    done = subprocess.run(
        [sys.executable, "-c", COME_AT_ONCE], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode in (0, -15), done.stderr
    assert 1 < int(done.stdout) <= 40


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
@pytest.mark.parametrize(
    ("full", "named"),
    [
        ("w1.example.org", "w1.example.org"),
        ("localhost", "w1"),
        ("localhost.localdomain", "w1"),
        ("ip6-localhost", "w1"),
    ],
)
def test_a_wildcard_is_advertised_by_a_name_that_others_may_reach(monkeypatch, caplog, wildcard, full, named):
    """Only its administrator can rename a machine, hence the patches."""
    monkeypatch.setattr("socket.getfqdn", lambda: full)
    monkeypatch.setattr("socket.gethostname", lambda: "w1")
    listen = [HostInfo(wildcard, 8081)]
    assert advertised(listen, None) == HostInfo(named, 8081)
    [line] = caplog.messages
    assert str(listen[0]) in line
    assert f"{named}:8081" in line
    assert "--advertise" in line
    caplog.clear()
    assert advertised(listen, HostInfo("w2", 1)) == HostInfo("w2", 1)
    assert advertised([HostInfo("127.0.0.1", 1)], None) == HostInfo("127.0.0.1", 1)
    assert not caplog.messages
