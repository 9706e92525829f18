"""A key in the forms that a read of it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from forebay.codecs.keys import from_segment
from forebay.codecs.segment_cache import of_one_store
from forebay.store_spec import StoreSpec


class KeyForm(NamedTuple):
    """One key of a store; ``partition`` is None if the partitioner is unknown."""

    plain: bytes
    partition: int | None
    stored: bytes
    """Its stored key, or what those of its entries begin with."""
    document: bytes
    """How the documents of its answers begin."""


KeyForms = Callable[[bytes], KeyForm]
"""The forms of a key by its URL segment as received; raises ``BadKey``."""


def key_forms(spec: StoreSpec, stores: int) -> KeyForms:
    """Those of a store which is one of so many."""

    def work_out(segment: bytes) -> KeyForm:
        plain = from_segment(spec.key_codec, segment)
        partition = None if spec.stream_partitioner is None else spec.partition_of(plain)
        document = b'{"store":"%b","key":%b' % (spec.name_bytes, spec.key_codec.to_json(plain))
        return KeyForm(plain, partition, spec.stored_keys.prefix(plain), document)

    return of_one_store(work_out, stores)
