"""A name with several addresses, of which some drop every packet: the backlog of a listener that nobody accepts
from is full."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NAME = "several.invalid"


def infos(*hosts: str, port: int = 80) -> list[Any]:
    """What ``getaddrinfo`` returns for addresses."""
    families = [socket.AF_INET6 if ":" in host else socket.AF_INET for host in hosts]
    return [
        (family, socket.SOCK_STREAM, 6, "", (host, port)) for family, host in zip(families, hosts, strict=True)
    ]


@contextlib.contextmanager
def dropping(host: str, port: int) -> Iterator[None]:
    """An address at which a connection is neither made nor refused."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.settimeout(0.1)
            try:
                one.connect((host, port))
            except TimeoutError:
                break
        else:
            pytest.fail("the backlog is never full")
        yield


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives ``NAME`` addresses."""

    def install(*hosts: str) -> None:
        of_system = socket.getaddrinfo

        def resolved(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
            if host in (NAME, NAME.encode()):
                return infos(*hosts, port=int(port))
            return of_system(host, port, *arguments, **options)

        monkeypatch.setattr(socket, "getaddrinfo", resolved)

    return install
