import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire.answer_schemas.status import Identity

identities = st.builds(
    Identity,
    st.sampled_from(["worker", "router"]),
    st.none() | st.text(max_size=20),
    st.text(max_size=20),
    st.integers(),
)


@given(identities)
def test_an_identity_survives_the_wire(identity):
    assert Identity.parse(msgspec.json.encode(identity)) == identity
    more = {**msgspec.structs.asdict(identity), "later": [1]}
    assert Identity.parse(json.dumps(more).encode()) == identity


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"tier":"worker","application_id":"a","process_id":"p"}',
        b'{"tier":"worker","application_id":1,"process_id":"p","incarnation":1}',
        b'{"tier":"worker","application_id":"a","process_id":"p","incarnation":true}',
        b'{"tier":"worker","application_id":"a","process_id":"p","incarnation":1,"more":"%b"}' % (b"x" * 5_000),
        b"\xff",
        b'{"more":%b' % (b"[" * 3_000),
    ],
)
def test_what_is_no_identity_is_refused(body):
    with pytest.raises(ValueError, match=r"\S"):
        Identity.parse(body)
