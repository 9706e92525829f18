import pytest

from forebay.errors import BadRequest
from forebay.rest.batches import MOST_KEYS, read_batch_keys


@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_lacks_are_refused(number):
    """Python's parser reads them; an answer that repeats one is no JSON."""
    with pytest.raises(BadRequest):
        read_batch_keys(b'{"keys": [%b]}' % number)
    assert read_batch_keys(b'{"keys": [1e300, "1e400"]}') == [1e300, "1e400"]


def test_a_batch_has_a_limited_number_of_keys():
    assert len(read_batch_keys(b'{"keys": [%b]}' % b",".join([b"1"] * MOST_KEYS))) == MOST_KEYS
    with pytest.raises(BadRequest, match=f"{MOST_KEYS + 1} keys are more than {MOST_KEYS}"):
        read_batch_keys(b'{"keys": [%b]}' % b",".join([b"1"] * (MOST_KEYS + 1)))
