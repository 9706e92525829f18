from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.partitioning import Murmur2Partitioner
from forebay_tap.batch_rows import partitions_of


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=20), max_size=60), st.integers(1, 200))
def test_several_keys_have_the_partitions_of_each(keys: list[bytes], partitions: int) -> None:
    partition = Murmur2Partitioner().partition
    assert partitions_of(keys, partitions) == [partition(key, partitions) for key in keys]
