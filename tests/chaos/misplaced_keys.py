"""Keys in partitions that are not theirs: another partitioner puts them there, or a topic gets more partitions."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

from forebay.clock import boot_ms
from forebay.store_spec import StoreSpec
from forebay_changelog import Changelog
from tests.chaos.deployment import Deployment
from tests.chaos.history import Cut, Doubt, Item
from tests.chaos.log_faults import Injury
from tests.chaos.promises import DOUBT_WITHIN_MS
from tests.chaos.topologies import GROWN
from tests.chaos.writer import Writer, key_of

STORE = "counts"
CHECKED_OF = 64
"""Of so many successive records workers check at least one: docs/topology.md."""
_FIRST_NUMBER = 1_000
"""Of keys that nobody else writes."""


class MisplacedKeys:
    """Has a store's keys in wrong places; ``add_partition`` gives a topic one more, where a log can have more."""

    def __init__(
        self,
        deployment: Deployment,
        writer: Writer,
        changelog: Changelog,
        report: Callable[[Cut | Doubt], None],
        add_partition: Callable[[StoreSpec], None] | None = None,
    ) -> None:
        self._deployment, self._writer, self._changelog = deployment, writer, changelog
        self._report = report
        self.injuries: dict[str, Callable[[int], Injury]] = {"misplace-keys": self._misplace}
        if add_partition is not None:
            self.injuries["add-partition"] = functools.partial(self._add, add_partition)

    @contextlib.contextmanager
    def _misplace(self, target: int) -> Iterator[str]:
        """Write keys to a partition as a producer with another partitioner does, and delete them there again."""
        spec = self._deployment.topology.stores[STORE]
        partition = target % spec.partitions
        keys = _keys_of_others(spec, partition)
        written = self._writer.write_to(spec, partition, keys)
        began_ms = boot_ms()
        time.sleep(DOUBT_WITHIN_MS / 1_000)
        yield f"{spec.topic} {partition}"
        ended_ms = boot_ms()
        deleted = self._writer.write_to(spec, partition, keys, deletes=True)
        self._report(Doubt(STORE, began_ms, ended_ms, partition, written.stop, deleted.start))

    @contextlib.contextmanager
    def _add(self, add: Callable[[StoreSpec], None], _: int) -> Iterator[str]:
        """Give a topic one partition more, and replace it, while no worker runs, by an empty one as it was."""
        spec = self._deployment.topology.stores[GROWN]
        add(spec)
        began_ms = boot_ms()
        time.sleep(DOUBT_WITHIN_MS / 1_000)
        yield spec.topic
        ended_ms = boot_ms()
        with self._deployment.without_workers():
            stopped_ms = boot_ms()
            self._writer.begin_anew(spec, lambda: self._changelog.reset(spec))
            for partition in range(spec.partitions):
                self._report(Cut(spec.name, partition, 0, stopped_ms, boot_ms()))
        self._report(Doubt(GROWN, began_ms, ended_ms))


def _keys_of_others(spec: StoreSpec, partition: int) -> list[Item]:
    keys: list[Item] = []
    number = _FIRST_NUMBER
    while len(keys) < CHECKED_OF:
        key = key_of(spec.name, number)
        if spec.partition_of(key.encode()) != partition:
            keys.append((key,))
        number += 1
    return keys
