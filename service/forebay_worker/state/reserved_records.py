"""Reserved records of a store: the offsets of what it has, written with it, and what it was built from."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from forebay.state_store import CommittedOffset
from forebay.stored_keys import RESERVED_TAG
from forebay.task_ids import TopicPartition

OFFSET_KEY = RESERVED_TAG + b"offset"
IDENTITY_KEY = RESERVED_TAG + b"identity"


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
