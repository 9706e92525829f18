import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.wire.batches import BatchKeys, batch_answer, read_batch_frames
from forebay_web.large_answers import LargeAnswer, batch_answer_in_turns, read_batch_frames_in_turns

MEBIBYTE = 1 << 20
RESULTS = [(200, b'{"n":%d}' % n) for n in range(3)] + [
    (404, b'{"status":404}'),
    (200, b'"%b"' % (b"x" * MEBIBYTE)),
]
KEYS = BatchKeys([f"k{place}" for place in range(len(RESULTS))])


async def frames() -> bytes:
    answer = await batch_answer_in_turns(KEYS, RESULTS, frames=True)
    assert isinstance(answer, LargeAnswer)
    return b"".join(answer.parts)


async def test_a_large_answer_is_that_of_a_small_batch():
    answer = await batch_answer_in_turns(KEYS, RESULTS)
    assert isinstance(answer, LargeAnswer)
    small = batch_answer(KEYS, RESULTS)
    assert (answer.status, answer.head, b"".join(answer.parts)) == small
    assert await batch_answer_in_turns(KEYS, RESULTS[:-1]) == batch_answer(KEYS, RESULTS[:-1])


async def test_a_router_reads_its_frames():
    assert read_batch_frames(await frames(), len(RESULTS)) == (
        [status for status, _ in RESULTS],
        [body for _, body in RESULTS],
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 200) | st.integers(0, MEBIBYTE), min_size=1, max_size=6))
async def test_frames_are_read_however_they_were_cut(cuts):
    whole = await frames()
    ends = sorted({*cuts, len(whole)})
    pieces = [whole[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    statuses, bodies = await read_batch_frames_in_turns(pieces, len(RESULTS))
    assert list(zip(statuses, bodies, strict=True)) == RESULTS


@pytest.mark.parametrize("spoil", [lambda raw: raw[:-1], lambda raw: raw + b"\x01", lambda raw: b"\x01" + raw])
async def test_anything_else_is_refused(spoil):
    raw = spoil(await frames())
    with pytest.raises(ValueError, match="something other than a batch"):
        await read_batch_frames_in_turns([raw[:1_000], raw[1_000:]], len(RESULTS))
