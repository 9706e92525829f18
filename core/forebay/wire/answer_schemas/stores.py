"""Answers about stores, and about which worker holds what (KIP-535)."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from forebay.store_kinds import STORE_KINDS
from forebay.wire.answer_schemas.members import Host, JsonValue, Natural

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
