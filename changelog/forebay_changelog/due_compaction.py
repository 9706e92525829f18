"""When a process that writes logs compacts them: now and then, and seldom where that takes long."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable

from forebay.store_spec import StoreSpec
from forebay_changelog.base import Changelog

log = logging.getLogger(__name__)

_INTERVAL_S = 600.0
_SHARE = 0.02
"""The most of the time that compaction takes: it reads whole logs, however little is new."""


class DueCompaction:
    """Compacts the logs of some stores, one after the other, whenever that is due."""

    def __init__(self, changelog: Changelog, specs: Iterable[StoreSpec]) -> None:
        self._compactors = [(spec, one) for spec in specs if (one := changelog.compactor(spec)) is not None]
        self._pause_s, self._due = _INTERVAL_S, -math.inf

    def begin_if_due(self) -> None:
        """Begin if compaction is due, and the last one is over."""
        if self._compactors and time.monotonic() >= self._due:
            self._due = math.inf
            # In a separate thread: heartbeats must not wait for it, but a job that ends soon does.
            try:
                threading.Thread(target=self._compact, name="forebay-compaction", daemon=False).start()
            except RuntimeError:
                # There are too many threads; with the next heartbeat there may not be.
                self._due = -math.inf
                raise

    def _compact(self) -> None:
        begun, some = time.monotonic(), False
        for spec, compactor in self._compactors:
            try:
                compacted_ms = compactor.compacted_ms(spec.topic)
                # This or another job may have done it recently; checked once every interval.
                if compacted_ms is None or time.time() - compacted_ms / 1000 >= self._pause_s / 2:
                    compactor.compact(spec)
                    some = True
            except Exception:
                log.exception("the log of %s could not be compacted; it will be retried", spec.name)
        if some:
            self._pause_s = max(_INTERVAL_S, (time.monotonic() - begun) / _SHARE)
        self._due = begun + self._pause_s
