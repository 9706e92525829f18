"""Values of rows as JSON objects."""

from decimal import Decimal
from operator import itemgetter

from forebay_tap.json_forms import ValueEncoder, ValueMember


def test_values_have_every_member_under_its_name():
    members = [ValueMember('per "cent" %b', itemgetter(0), None), ValueMember("text", itemgetter(1), str.upper)]
    encoder = ValueEncoder(members)
    rows = [(Decimal("1.50"), "a\nb"), (None, None), (7, "é")]
    assert encoder.texts(rows) == [
        b'{"per \\"cent\\" %b":1.50,"text":"A\\nB"}',
        b'{"per \\"cent\\" %b":null,"text":null}',
        '{"per \\"cent\\" %b":7,"text":"É"}'.encode(),
    ]
    assert [encoder.text(row) for row in rows] == encoder.texts(rows)


def test_a_value_without_members_is_an_empty_object():
    assert ValueEncoder(()).texts([(1,), (2,)]) == [b"{}", b"{}"]
    assert ValueEncoder(()).texts([]) == []
