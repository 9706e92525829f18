"""What a request is about, and whether an answer is about the same.

Why: on a connection that is out of step, as behind a faulty proxy or after a ``fork()`` that Python did not see,
the next answer belongs to another request. It would be another key's value, with a plausible lag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.codecs.keys import KeyCodec
from forebay.errors import BadKey, Problem, UnknownKey
from forebay_client.options import ALL_KEYS
from forebay_client.results import Answer, Change

_UNKNOWN_KEY = f"urn:forebay:problem:{UnknownKey.name}"


@dataclass(frozen=True)
class Requested:
    """A store and, unless it is ``ALL_KEYS``, a key: a JSON value of the codec."""

    store: str
    key: Any = ALL_KEYS
    codec: KeyCodec | None = None

    def mismatch(self, document: Mapping[str, Any]) -> str | None:
        """How a single answer, the head of a list or a problem names something else, None if it does not.

        Raises ``LookupError`` if it is an answer that names nothing. Problems need not, but for ``unknown-key``.
        """
        is_problem = "type" in document and document["type"] != _UNKNOWN_KEY
        if is_problem:
            document = {"store": self.store, "key": self.key, **document}
        if document["store"] != self.store:
            return f"the store {document['store']!r} for {self.store!r}"
        if self.key is not ALL_KEYS and not self._is_key(document["key"]):
            return f"the key {document['key']!r} of {self.store!r} for {self.key!r}"
        return None

    def _is_key(self, answered: Any) -> bool:
        key = self.key
        if type(key) is type(answered) and isinstance(key, str | int) and key == answered:
            return True
        if key is answered or self.codec is None:
            return key is answered
        try:
            # Several JSON values may be one key: 1 and 1.0, or base64url with and without padding.
            return self.codec.from_json(answered) == self.codec.from_json(key)
        except BadKey:
            return False


def spec_mismatch(store: str, document: Mapping[str, Any]) -> str | None:
    """The same for the description of a store, or a problem instead."""
    return Requested(store).mismatch(document if "type" in document else {"store": document["name"]})


def batch_mismatch(store: str, requested: Sequence[Requested], document: Mapping[str, Any]) -> str | None:
    """The same for a batch, or a problem instead."""
    if "type" in document:
        return Requested(store).mismatch(document)
    results = document["results"]
    if len(results) != len(requested):
        return f"{len(results)} results for {len(requested)} keys"
    for one, result in zip(requested, results, strict=True):
        problem = result.get("problem")
        mismatch = one.mismatch(result if problem is None else {"store": store, **problem, "key": result["key"]})
        if mismatch is not None:
            return mismatch
    return None


def change_mismatch(requested: Requested, change: Change) -> str | None:
    """The same for an event of a stream; a ``ReplicaInfo`` names no key."""
    if isinstance(change, Answer):
        return requested.mismatch({"store": change.store, "key": change.key})
    return requested.mismatch({"type": change.type, **change.members}) if isinstance(change, Problem) else None
