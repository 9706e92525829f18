from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.codecs.keys import KEY_CODECS
from forebay.codecs.values import VALUE_CODECS, all_to_json
from tests.support.drawn_keys import json_keys

repeatable = settings(derandomize=True, deadline=None, max_examples=150)


@repeatable
@given(
    st.sampled_from(sorted(json_keys)).flatmap(lambda name: st.tuples(st.just(name), st.lists(json_keys[name])))
)
@example(("string", ["plain", "spaces and \u2028", 'quo"te', "back\\slash", "", "\x7f"]))
@example(("string", ["plain", "also plain"]))
def test_keys_have_the_same_json_text_together_as_one_by_one(drawn: tuple[str, list[Any]]) -> None:
    name, keys = drawn
    codec = KEY_CODECS[name]
    plains = [codec.from_json(key) for key in keys]
    form, texts = all_to_json(codec, plains)
    assert [form % text for text in texts] == [codec.to_json(plain) for plain in plains]


@repeatable
@given(st.sampled_from(["string", "json", "bytes"]), st.lists(st.binary(max_size=8)))
@example("string", [b"plain", b"\xff"])
def test_values_have_the_same_json_text_together_as_one_by_one(name: str, values: list[bytes]) -> None:
    codec = VALUE_CODECS[name]
    form, texts = all_to_json(codec, values)
    assert [form % text for text in texts] == [codec.to_json(value) for value in values]
