from forebay.rest.garbage import GarbageCollection


def test_all_garbage_is_collected_once_memory_has_grown_by_half():
    """Replaced objects, however many, cause none."""
    blocks, collected = 1_000, []
    collection = GarbageCollection(lambda: blocks, lambda: collected.append(blocks))
    collection.check()
    for blocks in (1_200, 1_000, 1_400, 1_600, 1_600, 2_300, 2_500):  # noqa: B007
        collection.check()
    assert collected == [1_000, 1_600, 2_500]
