"""The keys of ``get_many`` on their way: in which requests they go, and what the answers say of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from forebay.errors import BadKey, Problem
from forebay.streams_metadata import HostInfo
from forebay.wire.batches import MOST_BODY_BYTES, MOST_KEYS
from forebay.wire.problems import problem_of
from forebay.wire.retryable_statuses import OF_THE_REPLICA
from forebay_client.exchange import Request
from forebay_client.request_identity import Requested, batch_mismatch
from forebay_client.results import Answer, answer_of
from forebay_client.store_paths import store_path
from forebay_client.target_partition import TargetPartition

_MOST_BATCH_BYTES = MOST_BODY_BYTES - 1_024


class BatchKey(NamedTuple):
    """A key of a batch: its place among the results, its JSON, and its partition if a worker is to be asked."""

    place: int
    text: str
    requested: Requested
    target: TargetPartition | None = None

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
    if key.size_bytes > _MOST_BATCH_BYTES:
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
        if len(batch) == MOST_KEYS or held_bytes + key_bytes > _MOST_BATCH_BYTES:
            yield batch
            batch, held_bytes = [], 0
        batch.append(key)
        held_bytes += key_bytes
    if batch:
        yield batch


def by_worker(keys: Iterable[BatchKey], parameters: Mapping[str, Any]) -> list[list[BatchKey]]:
    """Keys of which the same worker is to be asked first, together."""
    first: dict[int, HostInfo | None] = {}
    groups: dict[HostInfo | None, list[BatchKey]] = defaultdict(list)
    for key in keys:
        assert key.target is not None
        partition = key.target.partition
        if partition not in first:
            first[partition] = next(iter(key.target.candidates(parameters)), None)
        groups[first[partition]].append(key)
    return list(groups.values())


def refused_by_partition(keys: Sequence[BatchKey], results: Sequence[Answer | Problem]) -> list[list[BatchKey]]:
    """The keys that another replica may answer, each partition's together; none if any server was asked."""
    groups: dict[int, list[BatchKey]] = defaultdict(list)
    for key, result in zip(keys, results, strict=True):
        if key.target is not None and isinstance(result, Problem) and result.status in OF_THE_REPLICA:
            groups[key.target.partition].append(key)
    return list(groups.values())


def refusal_of_all(batch: Mapping[str, Any]) -> Problem | None:
    """The problem of a batch of which another replica may answer all."""
    return refusal_of_any(batch) if all(map(_is_refused, batch["results"])) else None


def refusal_of_any(batch: Mapping[str, Any]) -> Problem | None:
    """The first problem in a batch of which another replica may answer some."""
    refused = next(filter(_is_refused, batch["results"]), None)
    return None if refused is None else _problem_in(refused)


def _is_refused(result: Mapping[str, Any]) -> bool:
    return "problem" in result and result["problem"].get("status") in OF_THE_REPLICA


def batch_request(
    store: str,
    keys: Sequence[BatchKey],
    parameters: dict[str, Any],
    target: TargetPartition | None,
    *,
    patient: bool = False,
) -> Request:
    """The request for a batch of a store's keys."""
    path = f"{store_path(store)}/batch-get"
    body = f'{{"keys": [{",".join([key.text for key in keys])}]}}'.encode()
    mismatch = partial(batch_mismatch, store, [key.requested for key in keys])
    return Request(path, parameters, mismatch, body, target=target, patient=patient)


def results_in(batch: dict[str, Any]) -> list[Answer | Problem]:
    """The answer or the problem of each key."""
    return [_result(result) for result in batch["results"]]


def _result(document: dict[str, Any]) -> Answer | Problem:
    return _problem_in(document) if "problem" in document else answer_of(document)


def _problem_in(result: Mapping[str, Any]) -> Problem:
    return problem_of({"key": result["key"], **result["problem"]})
