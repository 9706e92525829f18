import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.codecs.keys import canonical_json


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**54), 2**54)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.decimals(-1000, 1000, places=3).map(float)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=8,
    )
)
def test_canonical_json_is_that_of_rfc_8785(value):
    try:
        expected = rfc8785.dumps(value)
    except rfc8785.CanonicalizationError:
        with pytest.raises((rfc8785.CanonicalizationError, UnicodeEncodeError)):
            canonical_json(value)
    else:
        assert canonical_json(value) == expected
