import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.codecs.keys import KEY_CODECS
from forebay.errors import BadKey, BadRequest, Problem
from forebay.event_loop_turns import in_turns
from forebay.wire.batches import MAX_KEYS, BatchKeys, read_batch, read_batch_keys, read_plain, read_plain_keys


def keys_of(*texts: bytes) -> list[object]:
    return list(read_batch_keys(b'{"keys": [%b]}' % b",".join(texts)).values)


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_lacks_are_refused(number):
    """Python's parser reads them; an answer that repeats one is no JSON."""
    with pytest.raises(BadRequest):
        keys_of(number)
    assert keys_of(b"1e300", b'"1e400"') == [1e300, "1e400"]


def test_a_batch_has_a_limited_number_of_keys():
    assert len(keys_of(*[b"1"] * MAX_KEYS)) == MAX_KEYS
    with pytest.raises(BadRequest, match=f"{MAX_KEYS + 1} keys are more than {MAX_KEYS}"):
        keys_of(*[b"1"] * (MAX_KEYS + 1))


def large(body: bytes) -> bytes:
    """The same body, long enough to be read key by key."""
    return b" " * 20_000 + body


def outcome(read: Any) -> Any:
    try:
        return read()
    except Problem as problem:
        return type(problem)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(JSON, max_size=5), st.booleans(), st.sampled_from([None, 0, 1, "\t"]))
def test_a_large_body_is_read_as_a_small_one(keys, ascii_only, indent):
    body = json.dumps({"keys": keys}, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    small = outcome(lambda: list(read_batch_keys(body).values))
    found = outcome(lambda: asyncio.run(read_batch(large(body))))
    if isinstance(small, type):
        assert found is small
        return
    assert (list(found.values), found.large) == (small, True)
    # What is passed on means the same.
    assert json.loads(found.body(range(len(keys)))) == {"keys": small}
    assert [json.loads(found.text(place)) for place in range(len(keys))] == small


@pytest.mark.parametrize(
    "body",
    [
        b'{"keys": [1, 2',
        b'{"keys": [1, 2]',
        b'{"keys": [1 2]}',
        b'{"keys": [1,]}',
        b'{"keys": [,1]}',
        b'{"keys": [1]} x',
        b'{"keys": [1e400]}',
        b'{"keys": [NaN]}',
        b'{"keys": [' + b"1" * 5_000 + b"]}",
        b'{"keys": [' + b"[" * 400 + b"1}]}",
        b'{"keys": ["a\x00b"]}',
        b'{"keys": ["\xff"]}',
        b'{"keys": 1}',
        b'{"keys": [1], "more": [2]}',
        b'{"more": [1], "keys": [2]}',
        b"[1]",
        b'{"keys": [' + b",".join([b"1"] * (MAX_KEYS + 1)) + b"]}",
    ],
)
def test_what_is_no_batch_is_refused_however_long_it_is(body):
    for text in (body, large(body)):
        with pytest.raises(BadRequest):
            asyncio.run(read_batch(text))


@pytest.mark.parametrize(
    "key",
    [
        b'"%b"' % (b"a" * 4_097),
        b"[%b]" % b",".join([b"1"] * 600_000),
        b'"%b"' % (b"\\u0001" * 4_097),
    ],
)
def test_a_key_that_is_too_long_is_named(key):
    with pytest.raises(BadKey, match=r"keys\[1\] is longer than 4096 bytes"):
        asyncio.run(read_batch(large(b'{"keys": ["a", %b]}' % key)))
    longest = b'"%b"' % (b"\\u0001" * 4_096)
    assert asyncio.run(read_batch(large(b'{"keys": [%b]}' % longest))).values == ["\x01" * 4_096]


def test_a_key_that_is_no_utf8_is_repeated_as_text_that_is():
    """Of a large body, as of a small one."""
    for body in (b'{"keys": ["\xed\xa0\x80"]}', large(b'{"keys": ["\xed\xa0\x80"]}')):
        text = asyncio.run(read_batch(body)).text(0)
        assert json.loads(text.decode()) == "\ud800"


@pytest.mark.parametrize(
    "body",
    [
        "\ufeff".encode() + b'{"keys": ["a"]}',
        '{"keys": ["a", "ü"]}'.encode("utf-16"),
        b'{"keys": ["\xed\xa0\x80", "a"]}',
        json.dumps({"keys": [[list(range(150))]]}, indent=8).encode(),
    ],
)
def test_what_is_read_of_a_small_body_is_read_of_a_large_one(body):
    small = read_batch_keys(body).values
    # Behind what belongs to the beginning of a text.
    padded = body.replace(b"{", b"{" + b" " * 20_000, 1) if b"\x00" not in body else None
    padded = padded or body.decode("utf-16").replace("{", "{" + " " * 20_000).encode("utf-16")
    assert asyncio.run(read_batch(padded)).values == list(small)


async def test_long_batches_share_the_event_loop():
    """Several long conversions take one turn of the loop after the other."""
    ticks, steps = itertools.count(), []

    def work(name: str) -> Iterator[str]:
        for _ in range(20):
            steps.append(name)
            yield name

    async def loop_turns() -> None:
        while True:
            steps.append("|")
            await asyncio.sleep(0)

    beside = asyncio.create_task(loop_turns())
    await asyncio.gather(*(in_turns(work(name), lambda: next(ticks) / 1000) for name in "abc"))
    beside.cancel()
    # No more than a slice between two turns of the loop.
    assert max(map(len, "".join(steps).split("|"))) <= 3


async def test_long_work_gives_way_to_the_event_loop():
    """By a clock on which each item takes a millisecond."""
    ticks = itertools.count()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    assert await in_turns(range(100), lambda: next(ticks) / 1000) == list(range(100))
    beside.cancel()
    assert turns >= 25


async def test_large_batches_are_converted_as_small_ones():
    keys = [[1, "a"], "no key of the codec\ud800", {"b": None}]
    plains, faults = read_plain_keys(KEY_CODECS["json"], keys)
    assert (sorted(faults), [place for place, _ in plains]) == ([1], [0, 2])
    assert await read_plain(KEY_CODECS["json"], BatchKeys(keys, [b"", b"", b""])) == (plains, faults)
