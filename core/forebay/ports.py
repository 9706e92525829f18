"""Ports of TCP, as they are written."""

from __future__ import annotations

import re

MAX_PORT = 65_535


def parse_port(text: str) -> int:
    """Read a port; raises ``ValueError`` naming the text.

    Why: resolvers take a larger one modulo 65,536, which leads to another server.
    """
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) <= MAX_PORT:
        raise ValueError(f"{text[:20]!r} is not a port: ports are numbers from 1 to {MAX_PORT}")
    return int(text)
