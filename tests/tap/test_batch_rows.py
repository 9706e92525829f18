"""What a batch writes, in memory and beyond it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_tap.batch_rows import BatchRows
from tests.support.running_query import store

SPEC = store()
keys = st.binary(min_size=1, max_size=2)
records = st.lists(st.tuples(keys, keys, st.none() | st.binary(max_size=40)), max_size=60)


def written(spec, batches, **bound):
    rows = BatchRows(spec, **bound)
    for batch in batches:
        rows.add_all(batch)
    return {partition: list(pairs) for partition, pairs in rows.by_partition().items()}, rows.count


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(records, max_size=6), st.integers(0, 8_000))
def test_rows_are_the_same_whether_they_fit_into_memory(batches, held_bytes):
    """The last record of each key by its partition, in the order of keys."""
    expected = {}
    for plain, key, value in (record for batch in batches for record in batch):
        expected.setdefault(SPEC.partition_of(plain), {})[key] = value
    rows, count = written(SPEC, batches, held_bytes=held_bytes)
    assert rows == {partition: sorted(of_it.items()) for partition, of_it in expected.items()}
    assert count == sum(map(len, batches))


def test_rows_beyond_memory_are_merged_a_part_at_a_time():
    """Runs of more rows than are read at once, whose keys overlap."""
    ranges = [range(6_000), range(3_000, 9_000), range(0, 12_000, 2)]
    runs = [[(b"p", b"%06d" % key, b"%d" % run) for key in of_run] for run, of_run in enumerate(ranges)]
    rows, _ = written(SPEC, runs, held_bytes=1_200_000)
    expected = {key: value for records in runs for _, key, value in records}
    assert rows == {SPEC.partition_of(b"p"): sorted(expected.items())}
