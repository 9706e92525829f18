"""The changelog topics that a worker needs: created at start, or as soon as a broker answers."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

from forebay.errors import ChangelogError, ChangelogUnreachable, PartitionsAdded, TopicMissing, TopicRefused
from forebay.store_spec import StoreSpec
from forebay.topology import Topology
from forebay_changelog import Changelog
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.inspection import was_only_begun

log = logging.getLogger(__name__)

_RETRY_S = 2.0
_PATIENCE_S = 1.5
"""Brokers that are away must not delay the serving of what is on disk for longer."""


class TopicCreation:
    """Creates missing topics, except those of which there is state: they were there, so the log is a wrong one.

    While no broker answers, what is on disk is served.

    ``start`` raises what ``Changelog.ensure`` refuses.
    """

    def __init__(self, changelog: Changelog, topology: Topology, directory: StateDirectory, create: bool) -> None:
        self._changelog = changelog
        self._directory = directory
        self._built = {store for _, store in directory.stores_on_disk()}
        """Stores with state, whose topics were there once: in another changelog they would be empty."""
        self._left = list(topology.stores.values())
        self._create = create
        self._first_attempt_over = threading.Event()
        self._refusal: Exception | None = None
        """Why the first look ended early, for ``start`` if that still waits for it."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.storage_fault: str | None = None
        """Why a topic that could not be checked before is refused now; None if none is."""

    def start(self) -> None:
        """Check every topic in a thread, and wait for that as long as the log answers."""
        self._thread = threading.Thread(target=self._run, name="forebay-topics", daemon=True)
        self._thread.start()
        left = len(self._left)
        while not self._first_attempt_over.wait(_PATIENCE_S) and left != len(self._left):
            left = len(self._left)
        if self._refusal is not None:
            self._stopping.set()
            raise self._refusal
        if self._left:
            log.warning("Until the log can be reached, what is on disk is served.")

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._refusal = next(self._refusals(), None)
        except ChangelogUnreachable as error:
            log.warning("%s", error)
        except Exception as error:
            self._refusal = error
        self._first_attempt_over.set()
        while self._left and not self._stopping.wait(_RETRY_S):
            with contextlib.suppress(ChangelogUnreachable):
                # A cluster that is just starting refuses for a while what it accepts later.
                storage_fault = next(map(str, list(self._refusals())), None)
                if storage_fault is not None and storage_fault != self.storage_fault:
                    log.error("%s", storage_fault)
                self.storage_fault = storage_fault

    def _refusals(self) -> Iterator[Exception]:
        """Check the topics that are left; yields why some are refused, and raises ``ChangelogUnreachable``.

        At first, one that there is state of may have become unsuitable since, which is no reason not to serve
        that, and other stores.
        """
        for spec in list(self._left):
            try:
                self._ensure(spec)
            except ChangelogUnreachable:
                raise
            except ChangelogError as error:
                is_unsuitable = isinstance(error, PartitionsAdded | TopicRefused)
                if is_unsuitable and spec.name in self._built and not self._first_attempt_over.is_set():
                    log.error("%s Its state is served meanwhile.", error)
                    self._left.remove(spec)
                else:
                    yield error

    def _ensure(self, spec: StoreSpec) -> None:
        built = spec.name in self._built
        try:
            self._changelog.ensure(spec, create=self._create and not built)
        except TopicMissing:
            if built and self._create and self._was_only_begun(spec.name):
                self._built.discard(spec.name)
                self._ensure(spec)
                return
            if not built or spec.external:
                raise
            raise TopicMissing(
                f"There is no topic {spec.topic!r} at {self._changelog.url.partition('?')[0]}, but "
                f"{self._directory.path} has state that was built from it. Check --changelog. If that log is gone "
                "for good, create an empty one with 'forebay topology apply': the state is rebuilt from it."
            ) from None
        self._left.remove(spec)

    def _was_only_begun(self, store: str) -> bool:
        """Whether no directory of a store has content: no log was there when it was made."""
        here = [task for task, name in self._directory.stores_on_disk() if name == store]
        return all(was_only_begun(self._directory.store_path(task, store)) for task in here)
