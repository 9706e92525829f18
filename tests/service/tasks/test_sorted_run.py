"""Changes on their way into a sorted file."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_worker.tasks import restore_process
from forebay_worker.tasks.restore_process import SortedRun

KEYS = st.one_of(st.binary(max_size=5), st.integers(0, 999).map(lambda n: b"common-%03d" % n))
CHANGES = st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=2), max_size=40), max_size=12)


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that some tens of keys meet."""
    monkeypatch.setattr(restore_process, "_ENOUGH_TO_JUDGE", 10)
    monkeypatch.setattr(restore_process, "_FEWEST_PARTS", 4)
    monkeypatch.setattr(restore_process, "_MAX_PARTS", 12)


def gathered(some: list[dict[bytes, bytes | None]]) -> list[list[restore_process.Change]]:
    gathering = SortedRun()
    for changes in some:
        gathering.add(changes)
    return list(gathering.in_order())


@given(CHANGES)
def test_last_change_of_each_key_is_in_key_order(some):
    expected: dict[bytes, bytes | None] = {}
    for changes in some:
        expected |= changes
    assert list(itertools.chain(*gathered(some))) == sorted(expected.items())


def test_sorted_run_is_split_into_bounded_parts():
    """Keys are split behind the prefix that they share."""
    parts = gathered([{b"common-%03d" % n: b"1"} for n in range(300)])
    assert 3 <= len(parts) <= 12
    assert max(map(len, parts)) <= 100
    # The first keys promised ten to a part.
    assert len(gathered([{b"common-%03d" % n: b"1" for n in range(100)}])) == 10
