"""How answers name a key: whatever answers a request, its answer is for the store and key that were asked."""

from __future__ import annotations

import json
from typing import NamedTuple

from forebay.errors import UnknownKey
from forebay.store_spec import StoreSpec
from forebay.wire.answers import HttpAnswer


class NamedKey(NamedTuple):
    """A key of a store as it stands in answers to reads of it.

    A connection whose answers are out of step would otherwise return another key's value, with a plausible lag.
    """

    document: bytes
    """How the document of a value begins."""
    members: bytes
    """What the document of a miss contains."""

    @classmethod
    def of(cls, spec: StoreSpec, plain: bytes) -> NamedKey:
        """The names of a key, by its plain bytes."""
        key = spec.key_codec.to_json(plain)
        # A miss is written as JSON anew.
        again = key if spec.key != "json" else _written(json.loads(key))
        return cls(
            b'{"store":"%b","key":%b,' % (spec.name_bytes, key),
            b'"store":"%b","key":%b' % (spec.name_bytes, again),
        )

    def is_in(self, answer: HttpAnswer) -> bool:
        """Whether an answer is for this key, as far as its kind of answer says."""
        if answer.status == 200:
            return answer.body.startswith(self.document)
        return answer.status != UnknownKey.status or self.members in answer.body


def _written(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
