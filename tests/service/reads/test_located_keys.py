"""The keys of a batch by partition, one step for each key."""

from forebay.errors import BadParameter
from forebay_worker.reads.keys import LocatedKeys


def test_keys_are_found_again_by_partition_and_place():
    located = LocatedKeys(3, {})
    assert len(list(located.placing([(0, b"a"), (1, b"bb"), (2, b"c")], len))) == 3
    assert dict(located.at(None)) == {1: ([0, 2], [b"a", b"c"]), 2: ([1], [b"bb"])}
    assert dict(located.at({2})) == {1: ([2], [b"c"])}


def test_a_key_that_is_refused_is_a_step_too():
    """Else a batch of nothing else would be one step, however long it takes."""

    def refuse(plain: bytes) -> int:
        raise BadParameter("The key is in partition 1, not 0.", parameter="partition")

    located = LocatedKeys(2, {})
    assert len(list(located.placing([(0, b"a"), (1, b"b")], refuse))) == 2
    assert [status for status, _ in located.faults.values()] == [400, 400]
    assert dict(located.at(None)) == {}
