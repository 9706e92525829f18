"""Compaction of a changelog by the job that writes it, where no server does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog

log = logging.getLogger(__name__)

_INTERVAL_S = 600.0
_SHARE = 0.02
"""The most of its time that compaction of one store takes: it reads the whole log, however little is new."""


class Compaction:
    """Compacts the logs of some stores now and then, one after the other."""

    def __init__(self, changelog: Changelog, specs: Iterable[StoreSpec]) -> None:
        possible = [(spec, changelog.compactor(spec)) for spec in specs]
        self._compactors = {spec.name: compactor for spec, compactor in possible if compactor is not None}
        self._specs = tuple(spec for spec, _ in possible if spec.name in self._compactors)
        self._pauses_s = dict.fromkeys((spec.name for spec in self._specs), _INTERVAL_S)
        self._due = dict.fromkeys(self._pauses_s, time.monotonic())
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> None:
        """Begin with the stores that are due, if the last compaction is over."""
        if self._thread is not None and self._thread.is_alive():
            return
        due = [spec for spec in self._specs if time.monotonic() >= self._due[spec.name]]
        if due:
            # In a separate thread: heartbeats must not wait for it, but a job that ends soon does.
            self._thread = threading.Thread(
                target=self._compact, args=(due,), name="forebay-compaction", daemon=False
            )
            self._thread.start()

    def _compact(self, due: Iterable[StoreSpec]) -> None:
        for spec in due:
            begun = time.monotonic()
            compactor = self._compactors[spec.name]
            try:
                compacted_ms = compactor.compacted_ms(spec.topic)
                # This or another job may have done it recently; checked once every interval.
                if compacted_ms is None or time.time() - compacted_ms / 1000 >= self._pauses_s[spec.name] / 2:
                    compactor.compact(spec)
                    self._pauses_s[spec.name] = max(_INTERVAL_S, (time.monotonic() - begun) / _SHARE)
            except Exception:
                log.exception("the log of %s could not be compacted; it will be retried", spec.name)
            self._due[spec.name] = begun + self._pauses_s[spec.name]
