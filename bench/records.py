"""Seeded records: keys of 16 bytes, JSON values of 100 bytes."""

from __future__ import annotations

import random

VALUE_BYTES = 100
_NOISE_BYTES = 1 << 20


def records(count: int, seed: int = 1) -> dict[bytes, bytes]:
    """So many keys, in random order, with their values."""
    rng = random.Random(seed)
    noise = rng.randbytes(_NOISE_BYTES // 2).hex().encode()
    return {b"%016x" % rng.getrandbits(64): _value(rng, noise) for _ in range(count)}


def _value(rng: random.Random, noise: bytes) -> bytes:
    head = b'{"count":%d,"text":"' % rng.getrandbits(20)
    at = rng.getrandbits(19)
    return head + noise[at : at + VALUE_BYTES - len(head) - 2] + b'"}'
