"""The plans of what describes rather than reads: stores, metadata (KIP-535) and lags. No I/O is done here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from forebay.store_spec import StoreSpec
from forebay.streams_metadata import StreamsMetadataState
from forebay.wire.answer_schemas.stores import cluster_map_of
from forebay_client.exchange import Exchange, Mismatch, Plan, Request, understood
from forebay_client.results import ReplicaLag, replica_lag_of

T = TypeVar("T")


class Descriptions:
    """Plans every request for a document; each takes a time-out in milliseconds, None for the client's."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def stores(self, timeout_ms: int | None) -> Plan[dict[str, StoreSpec]]:
        """Every store by name; raises ``Problem``."""
        return self._stores(self._exchange.deadline(timeout_ms))

    def metadata(self, timeout_ms: int | None) -> Plan[StreamsMetadataState]:
        """Which worker holds what; raises ``Problem``."""
        deadline_ms = self._exchange.deadline(timeout_ms)
        map_ = yield from self._read("/v1/metadata", "hosts", cluster_map_of, deadline_ms)
        stores = yield from self._stores(deadline_ms)
        return StreamsMetadataState(stores, map_)

    def lags(self, store: str | None, timeout_ms: int | None) -> Plan[list[ReplicaLag]]:
        """Every replica, or those of a store; raises ``Problem``."""
        deadline_ms = self._exchange.deadline(timeout_ms)
        return self._read("/v1/lags", "lags", partial(_lags, store), deadline_ms, store=store)

    def _stores(self, deadline_ms: float) -> Plan[dict[str, StoreSpec]]:
        return self._read("/v1/stores", "stores", _specs, deadline_ms)

    def _read(
        self,
        path: str,
        member: str,
        read: Callable[[Mapping[str, Any]], T],
        deadline_ms: float,
        **parameters: str | None,
    ) -> Plan[T]:
        request = Request(path, parameters, _lacks(member), timed=False)
        return understood(read, (yield from self._exchange.ask(request, deadline_ms)))


def _lacks(member: str) -> Mismatch:
    """How a document is another than the one with a member: what was asked for is in no other."""

    def mismatch(document: Mapping[str, Any]) -> str | None:
        return None if member in document or "type" in document else f"a document without {member!r}"

    return mismatch


def _specs(document: Mapping[str, Any]) -> dict[str, StoreSpec]:
    return {store["name"]: StoreSpec.from_document(store) for store in document["stores"]}


def _lags(store: str | None, document: Mapping[str, Any]) -> list[ReplicaLag]:
    rows = map(replica_lag_of, document["lags"])
    return [row for row in rows if store in (None, row.store)]
