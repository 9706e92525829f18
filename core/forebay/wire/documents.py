"""Answers of both tiers about stores and metadata, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from forebay.codecs.keys import KeyCodec
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
from forebay.wire.answer_schemas.members import read_values
from forebay.wire.answer_schemas.stores import (
    HostMetadata,
    KeyMetadataAnswer,
    MapAnswer,
    StoreDescription,
    StoreMetadataAnswer,
    StoresAnswer,
)


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
