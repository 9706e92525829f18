"""Unproven ranges are joined and expire."""

import pytest

from forebay.unproven import UnprovenRange, kept, united


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(5, 9), (1, 3)], [(1, 3), (5, 9)]),
        ([(1, 5), (5, 9)], [(1, 9)]),
        ([(1, 9), (2, 3)], [(1, 9)]),
        ([(4, 9), (None, 4)], [(None, 9)]),
    ],
)
def test_ranges_that_touch_become_one(ranges, expected):
    assert list(united(ranges)) == expected


def test_oldest_of_many_ranges_become_one():
    """A heartbeat is as large as they are many."""
    assert united((10 * n, 10 * n + 5) for n in range(10))[:2] == ((0, 25), (30, 35))


@pytest.mark.parametrize(("ends", "met"), [((0, 11), False), ((0, 12), True), ((20, 30), True), ((21, 30), False)])
def test_range_has_the_ends_after_its_first_time_and_its_last(ends, met):
    assert UnprovenRange(10, 20).meets(ends) is met


def test_what_has_expired_is_cut_off():
    ranges = united([(None, 10), (20, 30)])
    assert kept(ranges, None) == ranges
    assert kept(ranges, 10) == ((9, 10), (20, 30))
    assert kept(ranges, 26) == ((25, 30),)
    assert kept(ranges, 31) == ()
