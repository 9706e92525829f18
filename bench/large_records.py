"""State that is larger than memory: numbered records, written to Kafka, and samples of their keys."""

from __future__ import annotations

import random
from collections.abc import Iterator

from confluent_kafka import Producer

from forebay.store_spec import StoreSpec
from forebay_changelog.kafka.changelog import KafkaChangelog

_ODD = 0x9E3779B97F4A7C15
"""An odd factor makes of successive numbers as many different ones of 64 bits."""
_NOISE_BYTES = 1 << 20
_EXPONENT = 0.99
"""Of the Zipf distribution of YCSB."""


def large_key(number: int) -> bytes:
    """The key of 16 bytes of a record."""
    return b"%016x" % (number * _ODD & (1 << 64) - 1)


def write_large(changelog: KafkaChangelog, spec: StoreSpec, count: int, value_bytes: int) -> None:
    """Write so many records, each of another key, to the partitions that Kafka's own partitioner gives them."""
    properties = changelog.kafka.librdkafka(linger_ms=20, batch_size=1 << 20, partitioner="murmur2_random")
    producer = Producer({**properties, "queue.buffering.max.messages": 400_000})
    for number, value in zip(range(count), _values(value_bytes), strict=False):
        while True:
            try:
                producer.produce(spec.topic, key=large_key(number), value=value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(600) == 0


def uniform(count: int, samples: int, seed: int) -> list[str]:
    """Keys of which each is as likely."""
    rng = random.Random(seed)
    return [large_key(rng.randrange(count)).decode() for _ in range(samples)]


def zipf(count: int, samples: int, seed: int) -> list[str]:
    """Keys of which the n-th is n ** 0.99 times less likely than the first."""
    rng = random.Random(seed)
    power = 1 - _EXPONENT
    return [
        large_key(int(((count**power - 1) * rng.random() + 1) ** (1 / power)) - 1).decode() for _ in range(samples)
    ]


def _values(value_bytes: int) -> Iterator[bytes]:
    """JSON texts of so many bytes that LZ4 finds little to save in."""
    noise = random.Random(1).randbytes(_NOISE_BYTES // 2).hex().encode()
    at = 0
    while True:
        at = (at + value_bytes) % (_NOISE_BYTES - value_bytes)
        yield b'"%s"' % noise[at : at + value_bytes - 2]
