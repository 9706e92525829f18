"""The partition that a request of a partition-aware client is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.store_spec import StoreSpec
from forebay.streams_metadata import HostInfo
from forebay_client.known_workers import KnownWorkers


@dataclass(frozen=True)
class TargetPartition:
    """A store's partition, and the workers of which some hold it."""

    workers: KnownWorkers
    spec: StoreSpec
    partition: int

    def candidates(self, parameters: Mapping[str, Any]) -> tuple[HostInfo, ...]:
        """The workers to ask, best first, for a read with these query parameters."""
        return self.workers.candidates(self.spec, self.partition, parameters)
