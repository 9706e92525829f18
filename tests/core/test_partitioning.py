import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.partitioning import Murmur2Partitioner, murmur2

repeatable = settings(derandomize=True, deadline=None, max_examples=150)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_that_kafka_publishes(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed


def test_negative_hash_is_masked_as_in_kafka() -> None:
    assert Murmur2Partitioner().partition(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10


@repeatable
@given(st.binary(max_size=40), st.integers(1, 1000))
def test_every_key_has_a_partition_in_range(key: bytes, partitions: int) -> None:
    assert 0 <= Murmur2Partitioner().partition(key, partitions) < partitions
