"""How old a query's state is: up to when everything that its sources had was read by a batch.

A batch's offsets say how far its sources were read, not when these had nothing more. So the tap looks at the
ends of the sources itself: once a batch has read up to the ends that were seen at some time, the state has
everything from before that time. Of sources whose ends it cannot see, nothing is claimed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from forebay.clock import epoch_ms
from forebay_tap.spark_checkpoint.logs import Offsets

Ends = Mapping[tuple[str, int], int]
"""The next offset that each partition of each topic will have."""

_MAX_OBSERVATIONS = 256


class EndsReader(Protocol):
    """Reads the ends of Kafka topics."""

    def __call__(self, topics: frozenset[str]) -> Ends | None:
        """The ends of all partitions of some topics; None if they cannot be read now."""
        ...


@dataclass
class SourceEnds:
    """The recent observations of the ends of a query's Kafka sources.

    ``read`` is None if nobody said where they are. ``clock_ms`` is the wall clock.
    """

    read: EndsReader | None
    clock_ms: Callable[[], float] = epoch_ms
    _observed: deque[tuple[int, Ends]] = field(default_factory=deque)

    def observe(self, offsets: Offsets) -> None:
        """Look at the ends of the sources that a batch had, which is the newest."""
        read_to = offsets.kafka_offsets()
        if self.read is None or read_to is None:
            return
        # Before they are asked for: what comes meanwhile may be missing.
        now_ms = int(self.clock_ms())
        ends = self.read(frozenset(topic for topic, _ in read_to))
        if ends is None:
            return
        if self._observed and self._observed[-1][1] == ends:
            self._observed[-1] = (now_ms, ends)
            return
        self._observed.append((now_ms, ends))
        if len(self._observed) > _MAX_OBSERVATIONS:
            # Thinned out: an age may be overstated, never understated.
            kept = [item for at, item in enumerate(self._observed) if at % 2 or at == len(self._observed) - 1]
            self._observed = deque(kept)

    def as_of_ms(self, offsets: Offsets) -> int | None:
        """The newest time of which the batch has read all that its sources had; None if that is not known."""
        read_to = offsets.kafka_offsets()
        if read_to is None:
            return None
        for observed_ms, ends in reversed(self._observed):
            if all(read_to.get(partition, 0) >= end for partition, end in ends.items()):
                return observed_ms
        return None
