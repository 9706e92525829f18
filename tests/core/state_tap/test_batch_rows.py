"""What a batch writes, by partition."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.state_tap.batch_rows import BatchRows
from tests.support.running_query import store

SPEC = store()
keys = st.binary(min_size=1, max_size=2)
records = st.lists(st.tuples(keys, keys, st.none() | st.binary(max_size=40)), max_size=60)


def written(spec, batches):
    rows = BatchRows(spec)
    for batch in batches:
        rows.add_all(batch)
    return {partition: list(pairs) for partition, pairs in rows.by_partition().items()}, rows.count


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(records, max_size=6))
def test_rows_are_the_last_of_each_key(batches):
    """The last record of each key by its partition, in the order of keys."""
    expected = {}
    for plain, key, value in (record for batch in batches for record in batch):
        expected.setdefault(SPEC.partition_of(plain), {})[key] = value
    rows, count = written(SPEC, batches)
    assert rows == {partition: sorted(of_it.items()) for partition, of_it in expected.items()}
    assert count == sum(map(len, batches))
