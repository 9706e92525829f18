from hypothesis import given
from hypothesis import strategies as st

from forebay_tap.spark_checkpoint.records import Record
from forebay_tap.spark_checkpoint.store_files import Overlay

KEYS = st.sampled_from([b"a", b"b", b"c"])
VALUES = st.binary(min_size=1, max_size=2)
RECORDS = st.one_of(
    st.builds(Record, st.sampled_from(["put", "merge"]), KEYS, VALUES),
    st.builds(Record, st.just("delete"), KEYS, st.none()),
)


def folded(snapshot, changes):
    state = dict(snapshot)
    for kind, key, value in changes:
        if kind == "delete":
            state.pop(key, None)
        else:
            state[key] = (state.get(key, b"") if kind == "merge" else b"") + value
    return state


@given(st.dictionaries(KEYS, VALUES), st.lists(RECORDS))
def test_changes_over_a_snapshot_are_their_fold(snapshot, changes):
    overlay = Overlay()
    for change in changes:
        overlay.apply(change)
    items = list(overlay.over(snapshot.items()))
    assert dict(items) == folded(snapshot, changes)
    assert len(items) == len(dict(items))


def test_a_snapshot_is_passed_on_as_it_is_read():
    """However large it is, only changes are held."""
    endless = ((number.to_bytes(8, "big"), b"") for number in iter(int, 1))
    assert next(Overlay().over(endless)) == (bytes(8), b"")
