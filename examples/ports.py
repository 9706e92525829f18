"""Free ports of this machine."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_FIRST, _LAST = 20_000, 32_767
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEWEST = 1_000


def free_ports(count: int) -> list[int]:
    """This many free loopback ports, none of which this process was given before, unless it was given all.

    The kernel does not choose them for outgoing connections, so a server may start, and start again, much later.
    """
    return list(itertools.islice(filter(_is_free, _candidates()), count))


@functools.cache
def _candidates() -> Iterator[int]:
    """Beginning at random, since other processes choose too."""
    last = _LAST
    with contextlib.suppress(OSError):
        last = min(last, int(_OUTGOING.read_text().split()[0]) - 1)
    ports = range(_FIRST, (last if last - _FIRST >= _FEWEST else _LAST) + 1)
    begin = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
