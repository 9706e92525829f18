"""Processes of one parent, which query each other over Unix sockets in a directory of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.timeouts import running_timeout
from forebay_web.tickets import make_ticket_key

_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class ProcessSlot:
    """This process's number among those of its parent; they meet in ``directory``."""

    number: int
    processes: int
    directory: Path
    ticket_key: bytes = field(default_factory=make_ticket_key, repr=False)
    """Signs tickets unless the settings have a key: the same in all processes of one parent."""

    @property
    def is_single(self) -> bool:
        """Whether there is no other."""
        return self.processes == 1

    def socket_of(self, number: int) -> Path:
        """The socket on which a process answers its peers."""
        return self.directory / f"{number}.sock"

    def counts_of(self, number: int) -> Path:
        """The file in which a process keeps its counters as last reported."""
        return self.directory / f"{number}.counts"


SINGLE_PROCESS = ProcessSlot(0, 1, Path())


class PeerProcesses:
    """Queries every other process, and answers them; ``answers`` maps each question to its answer, as JSON, or
    what awaits it.

    A question may have a subject, such as the name of a store, else an empty one.
    """

    def __init__(self, place: ProcessSlot, answers: Mapping[str, Callable[[str], Any]]) -> None:
        self._place = place
        self._answers = answers
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Start answering."""
        if self._place.is_single:
            return
        path = self._place.socket_of(self._place.number)
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, path)

    def stop(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()

    async def ask(self, question: str, subject: str = "") -> dict[int, Any]:
        """Every sibling's answer by its number, None for one that is absent or too slow."""
        others = [number for number in range(self._place.processes) if number != self._place.number]
        answers = await asyncio.gather(*(self._ask(number, f"{question} {subject}") for number in others))
        return dict(zip(others, answers, strict=True))

    async def _ask(self, number: int, question: str) -> Any:
        try:
            async with running_timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._place.socket_of(number))
                with contextlib.closing(writer):
                    writer.write(f"{question}\n".encode())
                    return json.loads(await reader.read())
        except (OSError, ValueError):
            return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            question, _, subject = (await reader.readline()).decode().strip().partition(" ")
            if question in self._answers:
                answer = self._answers[question](subject)
                if isinstance(answer, Awaitable):
                    answer = await answer
                # Metrics of thousands of replicas take a while.
                writer.write((await asyncio.to_thread(json.dumps, answer)).encode())
                await writer.drain()
