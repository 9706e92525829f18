"""Answers about stores, and about which worker holds what (KIP-535): made from it, and read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from forebay.codecs.keys import KeyCodec
from forebay.store_kinds import STORE_KINDS
from forebay.store_spec import StoreSpec
from forebay.streams_metadata import (
    ClusterMap,
    Generation,
    HostInfo,
    KeyQueryMetadata,
    StreamsMetadata,
    StreamsMetadataState,
)
from forebay.task_ids import TopicPartition
from forebay.wire.answer_schemas.members import Host, JsonValue, Natural, read_values

OptionalNatural: TypeAlias = Natural | UnsetType
TopicPartitions: TypeAlias = Annotated[list[tuple[str, int]], Meta(description="[topic, partition] each")]


class StoreDescription(Struct, frozen=True, kw_only=True):
    """One store: kind, codecs, partitions, and how long it keeps what."""

    name: str
    kind: Annotated[str, Meta(extra_json_schema={"enum": [*STORE_KINDS]})]
    key: str
    value: str
    partitioner: str
    topic: str
    partitions: Natural
    supplier: str
    external: bool
    on_bad_value: Literal["stop", "skip"]
    accept_uncompacted: bool
    accept_misplaced: bool = False
    record_headers: bool = False
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    block_size_bytes: Natural = 4_096
    bloom_bits_per_key: Natural = 10
    window_size_ms: OptionalNatural = UNSET
    retention_ms: OptionalNatural = UNSET
    gap_ms: OptionalNatural = UNSET
    history_retention_ms: OptionalNatural = UNSET
    ttl_ms: OptionalNatural = UNSET
    timestamp_after_max_ms: OptionalNatural = UNSET
    latest_by: str | UnsetType = UNSET
    max_record_lag: OptionalNatural = UNSET
    max_time_lag_ms: OptionalNatural = UNSET
    max_age_ms: OptionalNatural = UNSET


class StoresAnswer(Struct, frozen=True):
    """Every store."""

    application_id: str
    topology: str
    stores: list[StoreDescription]


class HostMetadata(Struct, frozen=True, kw_only=True):
    """What one worker holds."""

    host: Host
    active_store_names: list[str]
    active_topic_partitions: TopicPartitions
    standby_state_store_names: list[str]
    standby_topic_partitions: TopicPartitions
    process_ids: Annotated[
        list[str],
        Meta(description="The processes that the group knows at this host: two while one replaces another."),
    ] = []


class MapAnswer(Struct, frozen=True):
    """What every worker holds, as of one generation."""

    application_id: str
    topology: str
    incarnation: int
    generation: int
    hosts: list[HostMetadata]


class StoreMetadataAnswer(Struct, frozen=True):
    """The workers that hold a store."""

    store: str
    active: list[HostMetadata]
    standby: list[HostMetadata]


class KeyMetadataAnswer(Struct, frozen=True):
    """Where a key is."""

    store: str
    key: JsonValue
    active_host: str | None
    standby_hosts: list[Host]
    partition: Natural


def store_description(spec: StoreSpec) -> StoreDescription:
    """``GET /v1/stores/{store}``."""
    return StoreDescription(**spec.document())


def stores_answer(application_id: str, fingerprint: str, stores: Iterable[StoreSpec]) -> StoresAnswer:
    """``GET /v1/stores``."""
    return StoresAnswer(application_id, fingerprint, [store_description(spec) for spec in stores])


def map_answer(application_id: str, fingerprint: str, state: StreamsMetadataState) -> MapAnswer:
    """``GET /v1/metadata``; before the first assignment its generation is 0 and it lists no hosts."""
    incarnation, generation = state.map.generation
    hosts = [_host_metadata(host) for host in state.map.hosts]
    return MapAnswer(application_id, fingerprint, incarnation, generation, hosts)


def cluster_map_of(document: Any) -> ClusterMap:
    """The map in the JSON values of ``GET /v1/metadata``; raises ``ValueError`` if there is none."""
    answer = read_values(document, MapAnswer)
    generation = Generation(answer.incarnation, answer.generation)
    return ClusterMap(generation, tuple(map(_streams_metadata, answer.hosts)))


def store_metadata_answer(store: str, state: StreamsMetadataState) -> StoreMetadataAnswer:
    """``GET /v1/metadata/stores/{store}``."""
    active, standby = state.all_metadata_for_store(store), state.all_standby_metadata_for_store(store)
    return StoreMetadataAnswer(store, [*map(_host_metadata, active)], [*map(_host_metadata, standby)])


def key_metadata_answer(
    store: str, codec: KeyCodec, plain: bytes, metadata: KeyQueryMetadata
) -> KeyMetadataAnswer:
    """``GET /v1/metadata/stores/{store}/keys/{key}``."""
    active, standbys = metadata.active_host, [*map(str, metadata.standby_hosts)]
    key = msgspec.Raw(codec.to_json(plain))
    return KeyMetadataAnswer(store, key, None if active is None else str(active), standbys, metadata.partition)


def _host_metadata(metadata: StreamsMetadata) -> HostMetadata:
    return HostMetadata(
        host=str(metadata.host),
        active_store_names=sorted(metadata.active_store_names),
        active_topic_partitions=sorted(metadata.active_topic_partitions),
        standby_state_store_names=sorted(metadata.standby_state_store_names),
        standby_topic_partitions=sorted(metadata.standby_topic_partitions),
        process_ids=sorted(metadata.process_ids),
    )


def _streams_metadata(host: HostMetadata) -> StreamsMetadata:
    return StreamsMetadata(
        HostInfo.parse(host.host),
        frozenset(TopicPartition(*tp) for tp in host.active_topic_partitions),
        frozenset(TopicPartition(*tp) for tp in host.standby_topic_partitions),
        frozenset(host.active_store_names),
        frozenset(host.standby_state_store_names),
        frozenset(host.process_ids),
    )
