"""Log lines, as text for people or JSON for machines."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import TextIO

from forebay.request_trace import current

_MAX_WAITING = 10_000
_PATIENCE_S = 1.0
"""How long the end of a process waits for its last lines to be written."""
_QUIET_FOR_S = 60.0
_MAX_KEPT = 10_000


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON: time, level, logger, message, and the exception if there is one."""
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = current.get()
        if trace is not None:
            document["request_id"] = trace.request_id
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A line for people."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging calls it so.
        """The line, with the id of the request that it is about."""
        trace = current.get()
        return super().formatMessage(record) + ("" if trace is None else f" (request {trace.request_id})")


class LinesInBackground(logging.Handler):
    """Writes lines in a thread of its own: a pipe that nobody reads stops no one who logs.

    A bounded number of lines waits; beyond that they are dropped, and their number is written once there is room.
    """

    def __init__(self, stream: TextIO, max_waiting: int = _MAX_WAITING) -> None:
        super().__init__()
        self._stream = stream
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._max_waiting = max_waiting
        self._dropped = 0
        self._written = threading.Event()
        self._written.set()
        threading.Thread(target=self._write, name="forebay-logs", daemon=True).start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written, as it is now."""
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._lines.qsize() >= self._max_waiting:
            self._dropped += 1
            return
        self._written.clear()
        self._lines.put(line)

    def flush(self) -> None:
        """Wait, though not for long, until everything is written."""
        self._written.wait(_PATIENCE_S)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = f"{line}\n{self._of_dropped(dropped)}"
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(f"{line}\n")
                self._stream.flush()
            if self._lines.empty():
                self._written.set()

    def _of_dropped(self, dropped: int) -> str:
        text = f"{dropped} log lines were dropped before this one: nobody read them in time"
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None))


def configure_logs(level: str, form: str) -> None:
    """Send logs of the given level and above to standard error in the given form."""
    handler = LinesInBackground(sys.stderr)
    text = TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # At lower levels it logs sessions and what it signs.
    logging.getLogger("botocore").setLevel(logging.WARNING)


class LogThrottle:
    """Remembers what was logged: the same is news again after a minute."""

    def __init__(self) -> None:
        self._logged_at_s: dict[str, float] = {}

    def allow(self, what: str) -> bool:
        """Whether to log it, in which case it counts as logged."""
        now = time.monotonic()
        if now - self._logged_at_s.get(what, -_QUIET_FOR_S) < _QUIET_FOR_S:
            return False
        if len(self._logged_at_s) >= _MAX_KEPT:
            self._logged_at_s.clear()
        self._logged_at_s[what] = now
        return True
