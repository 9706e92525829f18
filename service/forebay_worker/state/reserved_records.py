"""Reserved records of a store: the offsets of what it has, written with it, and what it was built from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from forebay.state_store import CommittedOffset
from forebay.store_spec import StoreSpec
from forebay.stored_keys import RESERVED_TAG
from forebay.task_ids import TopicPartition

OFFSET_KEY = RESERVED_TAG + b"offset"
IDENTITY_KEY = RESERVED_TAG + b"identity"
STATE_FORMAT = 2
"""1: values without the timestamps of their records."""


def offsets_to_json(offsets: Mapping[TopicPartition, CommittedOffset]) -> bytes:
    """What is under ``OFFSET_KEY``."""
    return msgspec.json.encode(
        [
            {"topic": topic, "partition": partition, **committed.document()}
            for (topic, partition), committed in offsets.items()
        ]
    )


def offsets_from_json(raw: bytes | None) -> dict[TopicPartition, CommittedOffset]:
    """The offsets under ``OFFSET_KEY``, none if the store has no such key."""
    if raw is None:
        return {}
    return {
        TopicPartition(found["topic"], found["partition"]): CommittedOffset.from_document(found)
        for found in json.loads(raw)
    }


@dataclass(frozen=True)
class StoreIdentity:
    """What a store on disk was built from; a store with another identity is not trusted but rebuilt."""

    log: str
    topic: str
    partition: int
    kind: str
    key: str
    value: str
    format: int = STATE_FORMAT
    timestamp_after_max_ms: int | None = None
    ttl_ms: int | None = None
    """Of a longer one, what had expired is missing."""
    record_headers: bool | None = None

    def document(self) -> dict[str, Any]:
        """The identity as JSON values; what is as by default is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def store_identity(log: str, spec: StoreSpec, partition: int) -> StoreIdentity:
    """The identity of one partition of a store that is built from a log."""
    return StoreIdentity(
        log,
        spec.topic,
        partition,
        spec.store_kind.layout_name,
        spec.key,
        spec.value,
        timestamp_after_max_ms=spec.timestamp_after_max_ms,
        ttl_ms=spec.ttl_ms,
        record_headers=spec.record_headers or None,
    )


def difference(found: StoreIdentity, expected: StoreIdentity) -> str | None:
    """What a store on disk has another of than it should, so that it is rebuilt; None if nothing."""
    wanted = asdict(expected)
    differing = {name: value for name, value in asdict(found).items() if value != wanted[name]}
    if not differing:
        return None
    others = [f"{name} {value!r} instead of {wanted[name]!r}" for name, value in differing.items()]
    misread = found.log == expected.log and differing.keys() & {"kind", "key", "value"}
    remedy = "; a store of another kind or codec needs a name of its own" if misread else ""
    return f"it was built with {', '.join(others)}{remedy}"
