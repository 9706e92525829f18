import asyncio

import pytest

from forebay.lag import UNKNOWN_LAG, Lag
from forebay_console.answer_schemas import LagBuckets
from forebay_console.history import Bounds, History, history_answer, pause_ms, quantile
from forebay_web.health.store_counts import StoreCounts, StoreSample, difference, total

NO_COUNTS = ((0, 0), (0, 0), (0, 0))
BOUNDS = Bounds((1, 10), ((0,), (100,), (1_000,)))
LAG = Lag(0, 7, 70)


def counts(reads: int, *, slow: int = 0, refused: int = 0) -> StoreCounts:
    problems = {"lag-exceeds-tolerance": refused} if refused else {}
    served = ((reads - refused, 0), (reads - refused, 0), (reads - refused, 0))
    return StoreCounts(reads, problems, (reads - slow, slow, 0), served)


def test_a_sample_is_what_was_counted_since_the_one_before():
    state = {"s": counts(10)}
    history = History(lambda: state, lambda: {"s": LAG})
    history.sample(100)
    state = {"s": counts(16, slow=2, refused=1)}
    history.sample(101)
    history.sample(102)
    first, second, third = history.samples("s")
    assert first.counts == counts(10)
    assert second.counts == StoreCounts(6, {"lag-exceeds-tolerance": 1}, (4, 2, 0), ((5, 0), (5, 0), (5, 0)))
    assert third == StoreSample(102, LAG)


def test_sample_rings_are_bounded_and_end_with_stores():
    """The ring of a store that is gone from the topology is dropped."""
    stores = {f"s{n}": LAG for n in range(200)}
    history = History(None, lambda: stores)
    for at_s in range(500):
        history.sample(at_s)
    assert [sample.at_s for sample in history.samples("s7")] == list(range(400, 500))
    stores = {"s1": LAG}
    history.sample(500)
    assert history.samples("s7") == []
    assert history.samples("s1")[-1].at_s == 500


async def test_what_was_counted_before_the_first_sample_is_in_none():
    """A process continues the counts of the one that it replaces, perhaps of days."""
    state = {"s": counts(1_000)}
    history = History(lambda: state, lambda: {"s": LAG})
    sampling = asyncio.create_task(history.run())
    await asyncio.sleep(0)
    sampling.cancel()
    state = {"s": counts(1_003)}
    history.sample(100)
    assert [sample.counts for sample in history.samples("s")] == [counts(3)]


def test_counts_of_several_processes_are_added_up():
    assert total([counts(4), counts(3, slow=1, refused=1)]) == StoreCounts(
        7, {"lag-exceeds-tolerance": 1}, (6, 1, 0), ((6, 0), (6, 0), (6, 0))
    )
    assert total([]) is None


def test_a_quantile_is_linear_within_its_bucket():
    assert quantile((1, 10), (0, 0, 0), 0.5) is None
    assert quantile((1, 10), (10, 0, 0), 0.5) == 0.5
    assert quantile((1, 10), (0, 4, 0), 0.5) == pytest.approx(5.5)
    assert quantile((1, 10), (0, 0, 3), 0.99) == 10


def test_nothing_read_and_nothing_counted_are_not_the_same():
    samples = [StoreSample(1, LAG, counts(4)), StoreSample(2, UNKNOWN_LAG)]
    read, idle = history_answer("s", samples, BOUNDS).samples
    assert (read.reads, read.p50_ms, read.age_ms) == (4, 0.5, 70)
    assert (idle.reads, idle.p50_ms, idle.age_ms) == (0, None, None)
    answer = history_answer("s", samples, None)
    assert [sample.reads for sample in answer.samples] == [None, None]
    assert answer.served is None


def test_served_answers_cover_the_last_minute():
    """The sum does not depend on which samples are requested."""
    samples = [StoreSample(at_s, LAG, counts(2, refused=1)) for at_s in range(1, 101)]
    answer = history_answer("s", samples, BOUNDS, after_ms=98_000)
    assert [sample.at_ms for sample in answer.samples] == [99_000, 100_000]
    assert answer.served is not None
    assert answer.served.age_ms == LagBuckets([1_000], [60, 0])
    assert answer.served.problems == {"lag-exceeds-tolerance": 60}


def test_a_counter_that_is_seen_first_counts_from_zero():
    assert difference(counts(0), None) is None
    assert difference(counts(3), None) == counts(3)
    assert difference(counts(3), counts(3)) is None


@pytest.mark.parametrize("early_ms", [-400, -2, 0, 2, 400])
def test_each_second_is_sampled_once(early_ms):
    """Timers may be early or late."""
    now_ms, seconds = 1_000_400.0, []
    for _ in range(5):
        now_ms += pause_ms(now_ms) - early_ms
        seconds.append(int(now_ms // 1000))
    assert seconds == [1001, 1002, 1003, 1004, 1005]
