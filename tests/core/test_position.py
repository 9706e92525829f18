import base64
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.errors import BadParameter
from forebay.position import (
    Position,
    decode_position,
    encode_opaque,
    encode_position,
    later_position,
    log_digest,
    max_position_characters,
)

repeatable = settings(derandomize=True, deadline=None, max_examples=200)

offsets = st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=6)
offsets_of_few = st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4)
"""Of so few partitions that two positions share some."""
logs = st.sampled_from([log_digest("one"), log_digest("two")])
points = st.dictionaries(
    st.integers(0, 2**31 - 1), st.tuples(st.integers(0, 2**63 - 1), st.none() | st.integers(0, 2**62)), max_size=6
)


def at_points(log: bytes, held: dict[int, tuple[int, int | None]]) -> Position:
    epochs = {partition: epoch for partition, (_, epoch) in held.items() if epoch is not None}
    return Position(log, {partition: offset for partition, (offset, _) in held.items()}, epochs)


positions = st.builds(at_points, logs, points)

LOG = log_digest("log")


@repeatable
@given(positions)
@example(Position(LOG, {}))
@example(Position(LOG, {0: 127, 127: 128, 128: 2**63 - 1, 2**31 - 1: 0}))
def test_a_token_carries_its_position_back(position: Position) -> None:
    token = encode_position(position)
    assert decode_position(token) == position
    assert token.replace("-", "").replace("_", "").isalnum()


def test_no_token_is_longer_than_one_may_be() -> None:
    for partitions in (1, 2, 100, 65_536):
        numbers = dict.fromkeys(range(65_536 - partitions, 65_536), 2**64 - 1)
        token = encode_position(Position(LOG, numbers, numbers, 2**64 - 1))
        assert len(token) <= max_position_characters(partitions)
        assert decode_position(token).offsets == numbers


@repeatable
@given(offsets)
def test_one_position_has_one_token(held: dict[int, int]) -> None:
    assert encode_position(Position(LOG, held)) == encode_position(Position(LOG, dict(reversed(held.items()))))


def token(*members: Any) -> str:
    return encode_opaque(members)


def text_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "A",
        "not a token",
        "é",
        "AQ",
        text_of(b"\x02" + LOG + b"\x00\x05\x00"),
        text_of(b"\x03" + LOG + b"\x00\x05\x00\x07"),
        token(3, LOG, [(0, 5, None)], None),
        token(5, LOG, [(0, 5, None)], None),
        token(4, LOG[:-1], [(0, 5, None)], None),
        token(4, LOG + b"l", [(0, 5, None)], None),
        token(4, LOG, [(0, 5)], None),
        token(4, LOG, [(0, 5, 1, 2)], None),
        token(4, LOG, [(0, -5, None)], None),
        token(4, LOG, [(-1, 5, None)], None),
        token(4, LOG, [(0, 5, -1)], None),
        token(4, LOG, [(0, 5.0, None)], None),
        token(4, LOG, [(0, 5, 3), (0, 9, None)], None),
        token(4, LOG, [(0, 5, None)], -1),
        token(4, LOG, [(0, 5, None)]),
        token(4, LOG, [(0, 5, None)], None, None),
        encode_position(Position(LOG, {0: 300}))[:-1],
        encode_position(Position(LOG, {0: 5})) + "AA",
        encode_position(Position(LOG, {0: 5})) + "\n",
    ],
)
def test_malformed_position_names_min_position(malformed: str) -> None:
    with pytest.raises(BadParameter) as caught:
        decode_position(malformed)
    assert caught.value.members == {"parameter": "min_position"}
    assert repr(malformed) in caught.value.detail


@repeatable
@given(st.text(max_size=40) | st.binary(max_size=30).map(text_of) | st.binary(max_size=12).map(
    lambda tail: text_of(b"\x94\x04\xc4\x08" + LOG + tail)))  # fmt: skip
def test_any_text_is_either_a_position_or_a_bad_parameter(text: str) -> None:
    try:
        position = decode_position(text)
    except BadParameter:
        return
    assert decode_position(encode_position(position)) == position


def test_a_logs_digest_is_stable_and_its_own() -> None:
    assert log_digest("one") == log_digest("one")
    assert log_digest("one") != log_digest("two")
    assert len(log_digest("")) == 8


def test_at_least_asks_every_partition_of_the_other_and_no_more() -> None:
    here = Position(LOG, {0: 10, 1: 5})
    assert here.at_least(Position(LOG, {}))
    assert here.at_least(Position(LOG, {0: 10}))
    assert here.at_least(Position(LOG, {1: 4}))
    assert not here.at_least(Position(LOG, {0: 11, 1: 5}))
    assert not here.at_least(Position(LOG, {0: 10, 2: 1}))
    assert here.at_least(Position(LOG, {2: 0}))


@repeatable
@given(offsets_of_few, offsets_of_few)
def test_the_later_of_two_tokens_is_at_least_both_and_no_more(one: dict[int, int], other: dict[int, int]) -> None:
    a, b = Position(LOG, one), Position(LOG, other)
    later = later_position(encode_position(a), encode_position(b))
    assert later is not None
    merged = decode_position(later)
    assert merged.at_least(a)
    assert merged.at_least(b)
    assert all(offset in (one.get(p), other.get(p)) for p, offset in merged.offsets.items())


def test_a_token_of_a_newer_log_replaces_the_old_logs() -> None:
    old, new = encode_position(Position(LOG, {0: 100})), encode_position(Position(log_digest("new"), {0: 1}))
    assert later_position(old, new) == new


def test_the_only_token_there_is_is_the_later_one() -> None:
    held = encode_position(Position(LOG, {0: 1}))
    assert later_position(held, None) == held
    assert later_position(None, held) == held
    assert later_position(None, None) is None
