import subprocess
import sys
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay import partitioning
from forebay.partitioning import Murmur2Partitioner, murmur2
from forebay_spark.batch_murmur2 import murmur2_partitions

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


@repeatable
@given(
    st.lists(st.binary(max_size=40), max_size=30),
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.integers(1, 200),
    st.sampled_from([np.int32, np.int64]),
)
@example([b""], b"", b"", 1, np.int32)
@example([], b"", b"", 7, np.int32)
@example([b"\xff" * 7], b"", b"", 97, np.int64)
def test_bulk_partitioning_equals_one_by_one(
    keys: list[bytes], before: bytes, after: bytes, partitions: int, offset_type: type
) -> None:
    data = np.frombuffer(before + b"".join(keys) + after, dtype=np.uint8)
    starts = list(accumulate(map(len, keys), initial=len(before)))
    offsets: npt.NDArray[Any] = np.array(starts, dtype=offset_type)

    chosen = murmur2_partitions(data, offsets, partitions)

    one_by_one = Murmur2Partitioner()
    assert chosen.tolist() == [one_by_one.partition(key, partitions) for key in keys]


@repeatable
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20), st.data())
def test_arrow_slice_is_partitioned_by_its_own_keys(keys: list[bytes], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys)))
    array = pa.array(keys, type=pa.binary()).slice(start)
    _, offsets, values = array.buffers()
    offsets = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    bytes_ = np.frombuffer(values, dtype=np.uint8) if values else np.zeros(0, dtype=np.uint8)

    chosen = murmur2_partitions(bytes_, offsets, 13)

    assert chosen.tolist() == [(murmur2(key) & 0x7FFFFFFF) % 13 for key in keys[start:]]


def test_executors_without_forebay_can_load_the_module() -> None:
    script = (
        "import runpy, sys; sys.modules['forebay'] = None; "
        f"m = runpy.run_path({partitioning.__file__!r}); print(m['murmur2'](b'abc'))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "479470107"
