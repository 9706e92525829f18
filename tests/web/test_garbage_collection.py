import gc
import weakref

import pytest

from forebay_web.garbage_collection import GarbageCollection


class Cycle:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def test_all_garbage_is_collected_once_memory_has_grown_fourfold():
    """Replaced objects, however many, cause none."""
    blocks, collected = 1_000, []
    collection = GarbageCollection(lambda: blocks, lambda: collected.append(blocks))
    collection.check()
    for blocks in (2_000, 1_000, 4_000, 4_100, 4_100, 16_000, 17_000):  # noqa: B007
        collection.check()
    assert collected == [1_000, 4_100, 17_000]


def test_all_is_searched_once_the_process_takes_twice_the_memory():
    """A few objects may hold much, such as the body of an answer that nobody waits for any more."""
    resident, collected = 1 << 30, []
    collection = GarbageCollection(lambda: 1_000, lambda: collected.append(resident), lambda: resident)
    collection.check()
    for resident in (1 << 30, (2 << 30) - 1, (2 << 30) + 1, 3 << 30, 5 << 30):  # noqa: B007
        for _ in range(20):
            collection.check()
    assert collected == [1 << 30, (2 << 30) + 1, 5 << 30]


def test_the_bound_falls_with_what_there_is():
    """After a peak, such as of followers, garbage may not pile up to four times the peak."""
    blocks, collected = 1_000, []
    collection = GarbageCollection(lambda: blocks, lambda: collected.append(blocks))
    collection.check()
    for blocks in (10_000, 500, 2_100):  # noqa: B007
        collection.check()
    assert collected == [1_000, 10_000, 2_100]


def test_what_lasts_is_searched_only_with_all():
    blocks = 1_000
    collection = GarbageCollection(lambda: blocks)
    collection.check()
    young = Cycle()
    known = weakref.ref(young)
    del young
    collection.check()
    assert known() is None
    lasting = Cycle()
    known = weakref.ref(lasting)
    collection.check()
    del lasting
    collection.check()
    assert known() is not None
    blocks = 5_000
    collection.check()
    assert known() is None
