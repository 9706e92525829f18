"""A read that a signal handler ends by raising: the client goes on, in every thread."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import cookiejar
from types import FrameType
from typing import Any

from forebay.client import Client
from tests.support.answering_server import answering_server


class Interrupted(Exception):
    """What the signal handler raises."""


def interrupt(*_: object) -> None:
    raise Interrupted


@contextmanager
def signal_at(number: int, file: str) -> Iterator[None]:
    """Sends this process a signal before the line of a module that is executed as the ``number``-th."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    previous = sys.gettrace(), signal.signal(signal.SIGUSR1, interrupt)
    sys.settrace(lambda frame, *_: trace if frame.f_code.co_filename == file else None)
    try:
        yield
    finally:
        sys.settrace(previous[0])
        signal.signal(signal.SIGUSR1, previous[1])


def test_other_threads_go_on_wherever_a_read_was_interrupted():
    """In what ``httpx`` does for cookies, whose jar has a lock that has to be free again."""
    interrupted, number = True, 0
    with answering_server() as server, Client(server.url) as client:
        while interrupted:
            number += 1
            interrupted = False
            with signal_at(number, cookiejar.__file__):
                try:
                    assert client.get("s", "a").value == "a"
                except Interrupted:
                    interrupted = True
            reading = threading.Thread(target=client.get, args=("s", "b"), daemon=True)
            reading.start()
            reading.join(20)
            assert not reading.is_alive(), f"interrupted at line {number} of the jar"
    assert number > 1
