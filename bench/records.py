"""Seeded records: keys of 16 bytes, JSON values of 100 bytes unless another size is given."""

from __future__ import annotations

import random

VALUE_BYTES = 100
_NOISE_BYTES = 1 << 19


def records(count: int, seed: int = 1, *, value_bytes: int = VALUE_BYTES) -> dict[bytes, bytes]:
    """This many keys, in random order, with their values."""
    rng = random.Random(seed)
    noise = rng.randbytes((_NOISE_BYTES + value_bytes) // 2).hex().encode()
    return {b"%016x" % rng.getrandbits(64): _value(rng, noise, value_bytes) for _ in range(count)}


def _value(rng: random.Random, noise: bytes, value_bytes: int) -> bytes:
    head = b'{"count":%d,"text":"' % rng.getrandbits(20)
    at = rng.randrange(_NOISE_BYTES)
    return head + noise[at : at + value_bytes - len(head) - 2] + b'"}'
