"""What a follower builds from a store's stream: each planted violation is found."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.built_state import built_states
from tests.chaos.checker import check
from tests.chaos.fold import Fold
from tests.chaos.history import Calm, Cut, Followed, History, Item, Portion, Reached, Read, Record, value_of
from tests.chaos.sensitivity import LOST, sensitivity
from tests.chaos.sometimes import ALL

KEY: Item = ("k",)
OTHER: Item = ("m",)
CALM = Calm(0.0, 60_000.0)


def record(offset: int, item: Item, serial: int | None) -> Record:
    at = 1000.0 * (offset + 1)
    return Record("counts", 0, offset, item, serial, at, at, at, at)


# k: 0 → 10, 2 → 12, 3 deleted. m: 1 → 11, 4 → 14. All in the first five seconds.
RECORDS = [
    record(0, KEY, 10),
    record(1, OTHER, 11),
    record(2, KEY, 12),
    record(3, KEY, None),
    record(4, OTHER, 14),
]
UNKNOWN = (None, None, None)
FRESH = (0, 0, 0)


def event(name: str, at: float, position: int = 5, host: str = "w1", tier: str = "router", **said: Any) -> Read:
    """An event; ``since`` is what its id says of the one partition, without an id if it is left out."""
    items = tuple(
        (item, None if serial is None else value_of(item, serial)) for item, serial in said.pop("items", ())
    )
    since, bounds = said.pop("since", None), said.pop("bounds", {})
    if since is not None:
        said["reached"] = {0: Reached(since, position)}
    followed = Followed("s", name, **{"partitions": (0,), **said})
    portions = {0: Portion(position, "active", host, *UNKNOWN)} if items else {}
    read = Read("r", "store-change", tier, "t", "counts", 0.0, at, 200, bounds=bounds, followed=followed)
    return replace(read, items=items, portions=portions, sent_ms=at)


def values(at: float, *items: tuple[Item, int], **said: Any) -> Read:
    return event("values", at, items=items, **said)


def absent(at: float, *items: Item, **said: Any) -> Read:
    return event("absent", at, items=[(item, None) for item in items], **said)


OPENED = event("opened", 1_000.0)
RESET = event("reset", 2_010.0, partitions=(0,))
STATE = values(2_020.0, (KEY, 10), (OTHER, 11), position=2, since=2)
BEGUN = [OPENED, RESET, STATE]
ENDED = event("ended", 4_500.0)
RESUMED = event("opened", 5_100.0, position=2, since=2)


def lag(at: float = 20_000.0, figures: tuple[int | None, ...] = FRESH, **said: Any) -> Read:
    return event("lag", at, lag=figures, **{"since": 5, **said})


def kinds(*reads: Read, calms: tuple[Calm, ...] = ()) -> set[str]:
    return {found.kind for found in check(History(records=RECORDS, reads=list(reads), calms=list(calms)))}


@pytest.mark.parametrize(
    "stream",
    [
        [*BEGUN, absent(5_200.0, KEY, since=4), values(5_300.0, (OTHER, 14), since=5), lag()],
        # What came before an id may be newer than what the id says was sent.
        [*BEGUN, values(5_200.0, (OTHER, 14), since=2), absent(5_300.0, KEY), lag()],
        # It resumed elsewhere, and is told of the deletion.
        [*BEGUN, ENDED, RESUMED, absent(5_200.0, KEY, host="w2"), values(5_300.0, (OTHER, 14), host="w2"), lag()],
        # Or has to forget the partition.
        [*BEGUN, ENDED, RESUMED, event("reset", 5_200.0), values(5_300.0, (OTHER, 14)), lag()],
        # A lag that excludes nothing.
        [*BEGUN, lag(figures=(5, 18_500, 18_500), since=2)],
        [*BEGUN, lag(figures=UNKNOWN, since=2)],
        # Nobody has to be told of a value that is gone.
        [OPENED, RESET, values(5_100.0, (OTHER, 14)), lag()],
        # What is not followed is not due.
        [OPENED, RESET, values(5_100.0, (OTHER, 14), keys=("m",)), lag(keys=("m",))],
        # A worker's lag speaks of the partitions in its id.
        [OPENED, RESET, values(5_100.0, (OTHER, 14)), lag(tier="worker", partitions=(0, 1))],
        # Without ids, as the client has it.
        [OPENED, RESET, values(5_100.0, (OTHER, 14)), lag(since=None)],
    ],
)
def test_a_stream_as_promised_is_no_violation(stream):
    assert kinds(*stream) == set()


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        # By the id, by the time lag, by the age, by the record lag; at the end all of the log.
        ("missing-change", [*BEGUN, absent(5_200.0, KEY, since=5)]),
        ("missing-change", [*BEGUN, absent(5_200.0, KEY), lag(figures=(None, 10, None), since=2)]),
        ("missing-change", [*BEGUN, absent(5_200.0, KEY), lag(figures=(None, None, 10), since=2)]),
        ("missing-change", [*BEGUN, absent(5_200.0, KEY), lag(since=2, bounds={"max_record_lag": 0})]),
        # Of what was never shown.
        ("missing-change", [OPENED, RESET, values(5_200.0, (KEY, 12), position=3, since=3)]),
        ("missing-change", [OPENED, RESET, lag()]),
        # The whole state is not there.
        ("missing-change", [OPENED, RESET, values(5_200.0, (OTHER, 14)), lag(partitions=(0, 1))]),
        ("missing-deletion", [*BEGUN, values(5_200.0, (OTHER, 14), since=5)]),
        ("missing-deletion", [*BEGUN, ENDED, RESUMED, values(5_300.0, (OTHER, 14), host="w2"), lag()]),
        # Forgotten is what the id did not have.
        ("missing-reset", [*BEGUN, ENDED, event("opened", 5_100.0), values(5_300.0, (OTHER, 14))]),
        ("missing-reset", [OPENED, values(5_300.0, (OTHER, 14))]),
        ("missing-reset", [*BEGUN, ENDED, event("opened", 5_100.0, since=0), values(5_300.0, (OTHER, 14))]),
        ("went-back", [*BEGUN, values(5_200.0, (KEY, 12)), values(5_300.0, (KEY, 10))]),
        ("went-back", [*BEGUN, values(5_200.0, (KEY, 12)), ENDED, RESUMED, values(5_300.0, (KEY, 10), host="w2")]),
        ("went-back", [*BEGUN, absent(5_200.0, KEY), event("reset", 5_250.0), values(5_300.0, (KEY, 12))]),
        ("unfollowed-item", [*BEGUN, values(5_200.0, (OTHER, 14), keys=("k",))]),
        ("beyond-bounds", [*BEGUN, lag(figures=(1, 20_000, 20_000), since=2, bounds={"max_record_lag": 0})]),
        ("wrong-value", [OPENED, RESET, values(5_200.0, (KEY, 11))]),
        ("beyond-position", [OPENED, RESET, values(5_200.0, (OTHER, 14), position=2)]),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(kind, stream):
    # What is followed is that of the first event.
    first = stream[0].followed
    keys = next((read.followed.keys for read in stream if read.followed.keys is not None), None)
    stream = [replace(stream[0], followed=replace(first, keys=keys)), *stream[1:]]
    assert kind in kinds(*stream)


def test_a_silent_stream_is_found_while_all_is_calm():
    ended = event("ended", 12_000.0)
    shown = [*BEGUN, lag(3_900.0, UNKNOWN, since=2)]
    assert kinds(*shown, ended, calms=(CALM,)) == {"silent-stream"}
    assert kinds(*shown, ended) == set()
    assert (
        kinds(*shown, lag(6_500.0, UNKNOWN, since=2), lag(9_100.0, UNKNOWN, since=2), ended, calms=(CALM,))
        == set()
    )
    assert kinds(*shown, ended, calms=(Calm(8_000.0, 11_000.0),)) == set()
    narrow = replace(ended, bounds={"max_time_lag_ms": 10})
    assert kinds(*shown, narrow, calms=(CALM,)) == set()


def test_a_refused_stream_is_no_event():
    refused = Read("r", "store-change", "worker", "t", "counts", 0.0, 10.0, 421, "not-hosted-here")
    assert kinds(refused) == set()
    assert kinds(replace(refused, tier="router", status=503, problem="no-replica")) == set()


def test_a_resumed_stream_differs_from_one_that_began_anew():
    def reached(*reads: Read) -> bool:
        sometimes = next(one for one in ALL if one.name == "a store's stream resumed at another worker")
        return sometimes.is_reached(History(reads=list(reads)))

    elsewhere = absent(5_200.0, KEY, host="w2")
    assert reached(*BEGUN, ENDED, RESUMED, elsewhere)
    assert not reached(*BEGUN, elsewhere)
    assert not reached(*BEGUN, ENDED, RESUMED, replace(elsewhere, portions=STATE.portions))
    assert not reached(*BEGUN, ENDED, RESUMED, event("reset", 5_150.0), elsewhere)
    assert not reached(*BEGUN, ENDED, event("opened", 5_100.0), elsewhere)


def test_a_saved_stream_is_judged_as_before(tmp_path):
    history = History(records=RECORDS, reads=[*BEGUN, lag()])
    history.save(tmp_path / "history.jsonl")
    assert History.load(tmp_path / "history.jsonl") == history


def test_the_judge_counts_the_lost_events_that_it_notices():
    stream = [*BEGUN, absent(5_200.0, KEY, since=4), values(5_300.0, (OTHER, 14), since=5), lag()]
    assert sensitivity(History(records=RECORDS, reads=stream))[LOST] == (3, 3)
    # Nobody misses one of two that are the same.
    stream.insert(-1, stream[-2])
    assert sensitivity(History(records=RECORDS, reads=stream))[LOST] == (2, 4)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_missing_is_what_every_position_shows(seed):
    """Changes of five keys are sent or lost at random, and after each the id says that all were sent."""
    choice = random.Random(seed)
    serials = [choice.choice([None, n]) for n in range(40)]
    records = [record(n, (choice.choice("abcde"),), serial) for n, serial in enumerate(serials)]
    shown: dict[Item, int | None] = dict.fromkeys([(name,) for name in "abcde"])
    reads, wrong = [OPENED, RESET], False
    for end in range(1, 40):
        sent = records[end - 1]
        if choice.random() < 0.9:
            shown[sent.item] = sent.serial
            reads.append(event("values", 50_000.0, end, items=[(sent.item, sent.serial)]))
        reads.append(event("lag", 50_000.0, end, lag=UNKNOWN, since=end))
        folded = dict.fromkeys(shown) | {one.item: one.serial for one in records[:end]}
        wrong = wrong or folded != shown
        found = {one.kind for one in built_states(Fold(records), reads)}
        assert found <= {"missing-change", "missing-deletion"}
        assert bool(found) == wrong


# From offset 3 on others came at 7 s: m: 3 → 23, k: 5 → 25.
GROWN = [*RECORDS, replace(record(3, OTHER, 23), began_ms=7_500.0), replace(record(5, KEY, 25), began_ms=7_600.0)]
AGAIN = [event("reset", 8_000.0), values(8_100.0, (OTHER, 23), (KEY, 25), position=6, since=6)]


def kinds_after_cut(*reads: Read) -> set[str]:
    cut = Cut("counts", 0, 3, 6_000.0, 7_000.0)
    return {found.kind for found in check(History(records=GROWN, reads=list(reads), cuts=[cut]))}


def test_a_stream_is_reset_after_its_log_was_cut():
    complete = [*BEGUN, absent(5_200.0, KEY, since=4), values(5_300.0, (OTHER, 14), since=5)]
    as_it_was = [event("reset", 7_600.0), values(7_700.0, (OTHER, 14), since=5)]
    unknown = lag(7_800.0, UNKNOWN)
    assert kinds_after_cut(*complete, *AGAIN, lag(since=6, position=6)) == set()
    # Or twice, since the replica did not know it yet.
    assert kinds_after_cut(*complete, *as_it_was, unknown, *AGAIN, lag(since=6, position=6)) == set()
    for stream in ([*complete, lag()], [*complete, ENDED, RESUMED, lag()], [*complete, *as_it_was, lag()]):
        assert "missing-reset" in kinds_after_cut(*stream)
    # It is of the one or the other.
    mixed = values(8_100.0, (OTHER, 14), (KEY, 25), position=6, since=6)
    assert "missing-change" in kinds_after_cut(*complete, AGAIN[0], mixed, lag(since=6, position=6))
    assert kinds_after_cut(*complete, *AGAIN[:1], values(8_100.0, (OTHER, 23), position=6, since=6)) == {
        "missing-change"
    }


def test_a_stream_goes_on_in_a_log_that_lost_nothing_of_it():
    resumed = event("opened", 7_600.0, position=2, since=2)
    grown = values(8_100.0, (OTHER, 23), (KEY, 25), position=6, since=6)
    assert kinds_after_cut(*BEGUN, ENDED, resumed, grown, lag(since=6, position=6)) == set()


def test_what_was_reset_and_not_sent_yet_needs_no_other_reset():
    """The log was cut in between."""
    opened = event("opened", 5_000.0)
    sent = values(8_100.0, (OTHER, 23), (KEY, 25), position=6, since=6)
    assert kinds_after_cut(opened, event("reset", 5_050.0), sent, lag(since=6, position=6)) == set()
