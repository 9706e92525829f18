"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """This many free loopback ports; all are held at once, so that no two are the same."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
