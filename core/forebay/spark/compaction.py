"""Compaction of a SQLite changelog by the job that writes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from forebay.changelog.sqlite.changelog import SqliteChangelog
from forebay.topology import StoreSpec

log = logging.getLogger(__name__)

_INTERVAL_S = 600.0


class Compaction:
    """Compacts the logs of some stores now and then, one after the other."""

    def __init__(self, changelog: SqliteChangelog, specs: Iterable[StoreSpec]) -> None:
        self._changelog = changelog
        self._specs = tuple(specs)
        self._due = time.monotonic()
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Begin, if enough time has passed and the last one is over."""
        if time.monotonic() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = time.monotonic() + _INTERVAL_S
        # In a separate thread: heartbeats must not wait for it, but a job that ends soon does.
        self._thread = threading.Thread(target=self._compact, name="forebay-compaction", daemon=False)
        self._thread.start()

    def _compact(self) -> None:
        for spec in self._specs:
            try:
                compacted_ms = self._changelog.compacted_ms(spec.topic)
                # This or another job may have done it recently; checked once every interval.
                if compacted_ms is None or time.time() - compacted_ms / 1000 >= _INTERVAL_S / 2:
                    self._changelog.compact(spec)
            except Exception:
                log.exception("the log of %s could not be compacted; it will be retried", spec.name)
