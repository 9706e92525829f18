"""Misses: only a replica that is consistent, and holds the key's partition, may say that a key does not exist."""

from __future__ import annotations

import json
from typing import Any

from forebay.errors import HistoryExpired, NotReady, Problem, UnknownKey
from forebay.store_spec import StoreSpec
from forebay_worker.reads.staleness_check import Admission, Admitted
from forebay_worker.reads.values import is_forgotten


def miss(admitted: Admitted, spec: StoreSpec, plain: bytes, as_of_ms: int | None = None) -> Problem:
    """The problem for a missing key: ``UnknownKey``, or why that cannot be said."""
    problem = why_unproven(admitted, spec, plain, as_of_ms)
    if problem is not None:
        return problem
    then = "" if as_of_ms is None else f" at {as_of_ms} ms since 1970"
    detail = f"The store {spec.name!r} has no key {_shown(spec, plain)}{then}."
    return UnknownKey(detail, store=spec.name, key=_key_of(spec, plain))


def why_unproven(
    admitted: Admitted, spec: StoreSpec, plain: bytes | None, as_of_ms: int | None = None
) -> Problem | None:
    """Why it proves nothing that the replica does not have a key, None if it proves that there is none.

    Without a key it is about all that a list leaves out.
    """
    # As it is now, after its content was read; ``admitted`` is as it was before.
    view = admitted.replica.view
    members: dict[str, Any] = {"store": spec.name}
    if plain is not None:
        members["key"] = _key_of(spec, plain)
    doubt = view.doubt or admitted.doubt
    if doubt is not None:
        return Admission.doubt_problem(doubt, **members)
    if view.filling:
        return NotReady(
            f"The log of {spec.name!r} is still being filled with what its source holds, so a missing key proves "
            "nothing.",
            retry_after_s=1,
            **members,
        )
    if not admitted.view.knows_all_keys or not view.consistent:
        return NotReady(
            "The replica is in the middle of a replay, where a missing key proves nothing.",
            retry_after_s=1,
            **members,
        )
    if view.unwritten:
        return NotReady(
            f"Nobody has written to this partition of {spec.name!r} yet, so a missing key proves nothing. Start "
            "the store's query or tap. A query that writes by Spark's own Kafka sink needs sink.heartbeats.",
            retry_after_s=1,
            **members,
        )
    try:
        forgotten = plain is not None and is_forgotten(admitted, plain, as_of_ms)
    except NotReady as problem:
        return problem
    if plain is not None and forgotten:
        return HistoryExpired(
            f"The value of {_shown(spec, plain)} at that time has expired: the store {spec.name!r} keeps "
            f"{spec.history_retention_ms} ms of history.",
            **members,
        )
    return None


def _key_of(spec: StoreSpec, plain: bytes) -> Any:
    return json.loads(spec.key_codec.to_json(plain))


def _shown(spec: StoreSpec, plain: bytes) -> str:
    """A key as an answer has it."""
    return spec.key_codec.to_json(plain).decode()
