"""Keys of each codec as JSON values, drawn by hypothesis."""

import base64
from typing import Any

from hypothesis import strategies as st

_SAFE_INTEGER = 2**53 - 1
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.text(max_size=8)
    | st.integers(-_SAFE_INTEGER, _SAFE_INTEGER)
    | st.floats(-_SAFE_INTEGER, _SAFE_INTEGER),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
json_keys: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=20),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bytes": st.binary(max_size=20).map(lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"=").decode()),
    "json": json_values,
    "avro": st.recursive(
        st.text(max_size=8) | st.integers(-(2**63), 2**63 - 1) | st.none() | st.booleans(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
}
