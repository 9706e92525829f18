"""The keys of ``get_many`` on their way: in which requests they go, and what the answers say of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from forebay.errors import BadKey, Problem
from forebay.wire.answers import problem_of
from forebay.wire.batches import MAX_BODY_BYTES, MAX_KEYS
from forebay_client.exchange import Request
from forebay_client.options import store_path
from forebay_client.request_identity import Requested, batch_mismatch
from forebay_client.results import Answer, answer_of

_MAX_BATCH_BYTES = MAX_BODY_BYTES - 1_024


class BatchKey(NamedTuple):
    """A key of a batch: its place among the results, and its JSON."""

    place: int
    text: str
    requested: Requested

    @property
    def size_bytes(self) -> int:
        """What it takes of a request's body."""
        return len(self.text.encode()) + 1


def key_text(key: Any) -> str:
    """A key's JSON; raises ``BadKey`` if it has none."""
    try:
        return json.dumps(key, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise BadKey(f"The key {key!r} is not a JSON value.") from None


def require_size(key: BatchKey) -> BatchKey:
    """The same key; raises ``BadKey`` if it is too long for a request."""
    if key.size_bytes > _MAX_BATCH_BYTES:
        raise BadKey(
            f"The key is {key.size_bytes} bytes long, more than a request may contain.", store=key.requested.store
        )
    return key


def batches(keys: Iterable[BatchKey]) -> Iterator[list[BatchKey]]:
    """Keys in their order, in as many batches as needed."""
    batch: list[BatchKey] = []
    held_bytes = 0
    for key in keys:
        key_bytes = key.size_bytes
        if len(batch) == MAX_KEYS or held_bytes + key_bytes > _MAX_BATCH_BYTES:
            yield batch
            batch, held_bytes = [], 0
        batch.append(key)
        held_bytes += key_bytes
    if batch:
        yield batch


def batch_request(store: str, keys: Sequence[BatchKey], parameters: dict[str, Any]) -> Request:
    """The request for a batch of a store's keys."""
    path = f"{store_path(store)}/batch-get"
    body = f'{{"keys": [{",".join([key.text for key in keys])}]}}'.encode()
    return Request(path, parameters, partial(batch_mismatch, store, [key.requested for key in keys]), body)


def results_in(batch: dict[str, Any]) -> list[Answer | Problem]:
    """The answer or the problem of each key."""
    return [
        problem_of({"key": result["key"], **result["problem"]}) if "problem" in result else answer_of(result)
        for result in batch["results"]
    ]
