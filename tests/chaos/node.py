"""One worker or router through all its processes, and where each of them is reached."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.clocks import WallClock
from tests.chaos.disks import Disk
from tests.chaos.proxy import Proxy

_MEMBER = b"forebay_web.processes.child"
"""In the command line of each process of a worker of several."""


@dataclass(frozen=True)
class Endpoint:
    """Where one process answers."""

    address: str
    """Where clients and routers reach it."""
    listen: str
    proxy: Proxy | None = None


@dataclass
class Node:
    """One worker or router, through all its processes."""

    name: str
    endpoints: tuple[Endpoint, ...]
    """Of a worker of several processes one of each; the first one answers for all."""
    log: Path
    arguments: list[str]
    state_dir: Path | None = None
    disk: Disk | None = None
    """On which its state is, if one could be mounted."""
    wall_clock: WallClock | None = None
    """Of workers."""
    is_slow: bool = False
    """Whether its restores take a while, in which it is asked, too."""
    process: Any = None
    started_ms: float = 0.0
    meant_to_run: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def address(self) -> str:
        """Where clients and routers reach its first process."""
        return self.endpoints[0].address

    @property
    def listen(self) -> str:
        """Where its first process listens, behind its proxy."""
        return self.endpoints[0].listen

    def members(self) -> list[int]:
        """Of a worker of several processes those that are members of the group, in order; else none."""
        if self.process is None or len(self.endpoints) == 1:
            return []
        return sorted(pid for pid in _children(self.process.pid) if _MEMBER in _content(f"/proc/{pid}/cmdline"))

    def process_ids(self) -> Iterator[str]:
        """By what the group knows its processes."""
        assert self.state_dir is not None
        for pattern in ("*/process.json", "process-*/*/process.json"):
            for path in self.state_dir.glob(pattern):
                with contextlib.suppress(OSError, ValueError):
                    yield str(json.loads(path.read_text())["process_id"])


def is_alive(pid: int) -> bool:
    """Whether a process has not ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _children(pid: int) -> list[int]:
    texts = [_content(str(path)) for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in texts for child in text.split()]


def _content(path: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""
