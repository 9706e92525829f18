import pytest

from forebay.errors import BadRequest
from forebay.rest.batches import MOST_KEYS, read_batch_keys

MAX_KEY_BYTES = 1_000


def keys_of(*texts: bytes) -> list[object]:
    return read_batch_keys(b'{"keys": [%b]}' % b",".join(texts), MAX_KEY_BYTES)


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_lacks_are_refused(number):
    """Python's parser reads them; an answer that repeats one is no JSON."""
    with pytest.raises(BadRequest):
        keys_of(number)
    assert keys_of(b"1e300", b'"1e400"') == [1e300, "1e400"]


def test_a_batch_has_a_limited_number_of_keys():
    assert len(keys_of(*[b"1"] * MOST_KEYS)) == MOST_KEYS
    with pytest.raises(BadRequest, match=f"{MOST_KEYS + 1} keys are more than {MOST_KEYS}"):
        keys_of(*[b"1"] * (MOST_KEYS + 1))
