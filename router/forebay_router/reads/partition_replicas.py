"""The replicas of a read's partition, as the policy of reads wants to know them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.store_spec import StoreSpec
from forebay.streams_metadata import Generation, HostInfo
from forebay.wire.parameters import ReadParameters
from forebay_router.router import Router
from forebay_web.explanations import explained

_LARGE_ANSWER_MS = 250.0
"""A page or a batch takes longer than the single keys from which the hedge delay is learnt."""


@dataclass(frozen=True)
class PartitionReplicas:
    """What this router knows of a partition's replicas now; ``large`` tells that their answer may be."""

    router: Router
    spec: StoreSpec
    partition: int
    parameters: ReadParameters
    large: bool = False

    @property
    def generation(self) -> Generation:
        """Of the newest map received."""
        return self.router.metadata.map.generation

    def candidates(self) -> Sequence[HostInfo]:
        """The workers to ask, best first."""
        found = self.router.candidates(self.spec, self.partition, self.parameters)
        if (explanation := explained.get()) is not None:
            explanation.note("candidates", partition=self.partition, hosts=self._known_of(found))
        return found

    def _known_of(self, hosts: Sequence[HostInfo]) -> list[dict[str, Any]]:
        """What is known of some candidates, in their order."""
        router = self.router
        holders = {one.host: one for one in router.cluster.holders(self.spec, self.partition, router.pool.load)}
        return [
            {
                "host": str(host),
                "role": holder.role,
                "lag": holder.lag.document(),
                "alive": holder.live,
                "suspect": holder.suspect,
                "lagging": holder.lagging,
                "near": holder.near,
                "in_flight": holder.load,
            }
            for host in hosts
            if (holder := holders.get(host)) is not None
        ]

    def is_full(self, host: HostInfo) -> bool:
        """Whether a worker is at its limit of requests in flight."""
        return self.router.full(host)

    def is_healthy(self, host: HostInfo) -> bool:
        """Whether a worker answers, as far as is known."""
        return self.router.cluster.is_healthy(host)

    def hedge_delay_ms(self) -> float:
        """How long an answer may take, learnt from all recent answers."""
        delay_ms = self.router.delay.delay_ms
        return max(delay_ms, _LARGE_ANSWER_MS) if self.large else delay_ms

    def spend_hedge(self) -> bool:
        """Whether the budget of all reads allows one more hedge; counts it if so."""
        return self.router.budget.spend()
