"""From when a state is, as its query's Kafka sources were seen: whatever came before that, it has."""

import json

import pytest

from forebay_tap.spark_checkpoint.logs import Offsets
from forebay_tap.tap import SourceEnds

TOPIC = ("orders", 0), ("orders", 1)


class Source:
    """A topic of two partitions, and a clock."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] | None = dict.fromkeys(TOPIC, 0)
        self.now_ms = 0
        self.observed = SourceEnds(lambda topics: None if self.ends is None else dict(self.ends), self.clock_ms)

    def clock_ms(self) -> float:
        return self.now_ms

    def observe(self, now_ms: int, *ends: int) -> None:
        self.now_ms, self.ends = now_ms, dict(zip(TOPIC, ends, strict=True)) if ends else None
        self.observed.observe(batch(0, 0))

    def as_of_ms(self, *read_to: int) -> int | None:
        return self.observed.as_of_ms(batch(*read_to))


def batch(*read_to: int) -> Offsets:
    ends = {str(partition): offset for partition, offset in enumerate(read_to)}
    return Offsets(0, 0, {}, {"0": json.dumps({"orders": ends})})


@pytest.fixture
def source():
    return Source()


def test_state_is_from_when_its_batch_had_all_that_was_seen(source):
    source.observe(1_000, 5, 5)
    source.observe(2_000, 8, 5)
    source.observe(3_000, 8, 9)
    assert source.as_of_ms(4, 5) is None
    assert source.as_of_ms(5, 5) == 1_000
    assert source.as_of_ms(8, 8) == 2_000
    assert source.as_of_ms(8, 9) == 3_000


def test_a_source_that_gets_nothing_makes_its_state_no_older(source):
    source.observe(1_000, 5, 5)
    source.observe(9_000, 5, 5)
    assert source.as_of_ms(5, 5) == 9_000


def test_ends_that_cannot_be_read_prove_nothing(source):
    source.observe(1_000, 5, 5)
    source.observe(9_000)
    assert source.as_of_ms(5, 5) == 1_000


def test_a_new_partition_counts_from_when_it_is_seen(source):
    source.observe(1_000, 5, 0)
    assert source.as_of_ms(5) == 1_000
    source.observe(2_000, 5, 1)
    assert source.as_of_ms(5) == 1_000


def test_many_observations_never_make_a_state_younger(source):
    for number in range(1, 2_000):
        source.observe(number * 1_000, number, 0)
    for number in (1, 700, 1_990, 1_999):
        as_of_ms = source.as_of_ms(number, 0)
        assert as_of_ms is None or as_of_ms <= number * 1_000
    assert source.as_of_ms(1_999, 0) == 1_999_000


def test_other_sources_have_no_ends(source):
    source.observe(1_000, 5, 5)
    files = Offsets(0, 0, {}, {"0": json.dumps({"orders": {"0": 5, "1": 5}}), "1": '{"logOffset":3}'})
    assert source.observed.as_of_ms(files) is None
    assert SourceEnds(None).as_of_ms(batch(5, 5)) is None
