import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.wire.answers import JSON_HEAD
from forebay_web.application import respond
from forebay_web.large_answers import _PIECE_BYTES, LargeAnswer, pieces_of

SIZES = st.sampled_from([0, 1, 1_000, _PIECE_BYTES - 1, _PIECE_BYTES, _PIECE_BYTES + 1, 3 * _PIECE_BYTES])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(SIZES, max_size=8))
def test_pieces_are_the_whole_and_none_is_large(sizes):
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    pieces = list(pieces_of(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert max(map(len, pieces), default=0) <= _PIECE_BYTES
    assert len(pieces) <= 2 * sum(sizes) // _PIECE_BYTES + 2


async def test_others_have_their_turn_between_two_pieces():
    """However fast the client reads."""
    seen: list[str] = []

    async def send(message):
        if message.get("body"):
            seen.append("piece")

    async def others() -> None:
        while True:
            seen.append("others")
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    answer = LargeAnswer(200, JSON_HEAD, [b"x" * (1 << 20), b"y"])
    await respond(answer)({"type": "http"}, None, send)
    beside.cancel()
    pieces = [place for place, what in enumerate(seen) if what == "piece"]
    assert len(pieces) == 5
    assert all("others" in seen[a:b] for a, b in pairwise(pieces))


def test_its_length_is_stated():
    response = respond(LargeAnswer(200, JSON_HEAD, [b"abc", b"d"]))
    assert response.raw_headers == [(b"content-type", b"application/json"), (b"content-length", b"4")]
