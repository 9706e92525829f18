"""JSON that is printed again with its numbers unchanged."""

import json
from decimal import Decimal

from forebay_client.exact_json import ExactJson, exact_text


def test_numbers_stay_as_they_were_written():
    text = '{"a":[12345678901234567.12,0.10,1e2],"b":"0.10"}'
    assert ExactJson(text).text() == text
    document = json.loads(text, parse_float=Decimal)
    assert exact_text(document) == '{"a": [12345678901234567.12, 0.10, 1E+2], "b": "0.10"}'
