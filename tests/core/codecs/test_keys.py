import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.codecs.keys import KEY_CODECS, from_segment, to_segment
from forebay.codecs.values import VALUE_CODECS
from forebay.errors import BadKey
from tests.support.drawn_keys import json_keys, json_values

repeatable = settings(derandomize=True, deadline=None, max_examples=150)
any_key = st.sampled_from(sorted(json_keys)).flatmap(lambda name: st.tuples(st.just(name), json_keys[name]))


def test_every_codec_has_its_keys_drawn_here() -> None:
    assert json_keys.keys() == KEY_CODECS.keys()


@repeatable
@given(any_key)
@example(("string", "a/b%2Fc%25+ \x00"))
@example(("string", "x" * 1024))
@example(("string", ""))
@example(("bytes", "AAEC_-8"))
@example(("int32", -(2**31)))
@example(("int64", 2**63 - 1))
def test_a_key_survives_every_form_it_takes(drawn: tuple[str, Any]) -> None:
    name, key = drawn
    codec = KEY_CODECS[name]
    plain = codec.from_json(key)

    assert json.loads(codec.to_json(plain)) == key
    assert codec.from_json(json.loads(codec.to_json(plain))) == plain
    assert codec.from_text(codec.to_text(plain)) == plain
    assert from_segment(codec, to_segment(codec, plain).encode()) == plain
    assert codec.plain(codec.ordered(plain)) == plain
    assert codec.fixed_size in (None, len(codec.ordered(plain)))


@pytest.mark.parametrize("name", ["string", "int32", "int64"])
@repeatable
@given(st.data())
def test_keys_sort_in_the_store_as_they_sort_for_people(name: str, data: st.DataObject) -> None:
    keys = data.draw(st.lists(json_keys[name], max_size=12))
    codec = KEY_CODECS[name]

    assert sorted(keys) == sorted(keys, key=lambda key: codec.ordered(codec.from_json(key)))


@repeatable
@given(st.lists(st.binary(max_size=5), max_size=12))
def test_byte_keys_sort_in_the_store_as_bytes(keys: list[bytes]) -> None:
    assert sorted(keys) == sorted(keys, key=KEY_CODECS["bytes"].ordered)


@pytest.mark.parametrize(
    ("name", "key", "plain"),
    [
        ("string", "né", b"n\xc3\xa9"),
        ("int32", 258, b"\x00\x00\x01\x02"),
        ("int32", -1, b"\xff\xff\xff\xff"),
        ("int64", -2, b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
        ("bytes", "AAEC", b"\x00\x01\x02"),
    ],
)
def test_plain_bytes_are_what_kafkas_serializers_write(name: str, key: Any, plain: bytes) -> None:
    assert KEY_CODECS[name].from_json(key) == plain


@pytest.mark.parametrize(
    ("segment", "key"),
    [
        (b"plain", "plain"),
        (b"", ""),
        (b"a%2Fb", "a/b"),
        (b"a%252Fb", "a%2Fb"),
        (b"100%25", "100%"),
        (b"%2525", "%25"),
        (b"a+b", "a+b"),
        (b"a%2Bb", "a+b"),
        (b"1+1%25", "1+1%"),
        (b"a%20b", "a b"),
        (b"%00", "\x00"),
        (b"%C3%A9t%c3%a9", "été"),
        ("été".encode(), "été"),
        (b"%F0%9F%9B%AB", "\U0001f6eb"),
        (b"k" * 1024, "k" * 1024),
        (b"%6B" * 1024, "k" * 1024),
    ],
)
def test_a_path_segment_is_decoded_exactly_once(segment: bytes, key: str) -> None:
    assert from_segment(KEY_CODECS["string"], segment).decode() == key


@pytest.mark.parametrize("segment", [b"%FF", b"a%FFb", b"\xff", b"%C3", b"%C0%AF", b"%ED%A0%80"])
def test_a_string_key_that_is_not_utf8_is_a_bad_key(segment: bytes) -> None:
    with pytest.raises(BadKey, match="UTF-8"):
        from_segment(KEY_CODECS["string"], segment)


@pytest.mark.parametrize("longest", [b"a" * 4_096, b"%61" * 1_365 + b"a"])
def test_a_segment_longer_than_a_key_may_be_is_a_bad_key(longest: bytes) -> None:
    """As it is written there."""
    assert set(from_segment(KEY_CODECS["string"], longest)) == {ord("a")}
    with pytest.raises(BadKey, match="The key is longer than 4096 bytes"):
        from_segment(KEY_CODECS["string"], longest + b"a")


def test_bytes_that_are_no_utf8_can_be_a_key_of_a_bytes_store() -> None:
    codec = KEY_CODECS["bytes"]
    assert to_segment(codec, b"\xff\xfe\x00") == "__4A"
    assert from_segment(codec, b"__4A") == b"\xff\xfe\x00"
    assert from_segment(codec, b"__4A%3D%3D") == b"\xff\xfe\x00"


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        ("int32", b"2147483648"),
        ("int32", b"-2147483649"),
        ("int64", b"9223372036854775808"),
        ("int64", b"-9223372036854775809"),
        ("int64", b"9" * 10_000),
        ("int32", b""),
        ("int32", b"-"),
        ("int32", b"+1"),
        ("int32", b"--1"),
        ("int32", b"1.0"),
        ("int32", b"1e3"),
        ("int32", b"%201"),
        ("int32", b"0x10"),
        ("int32", b"1_000"),
        ("int32", "٣".encode()),
        ("int64", b"%FF"),
        ("bytes", b"Q"),
        ("bytes", b"QQ!!"),
        ("bytes", b"Q%20Q"),
        ("bytes", b"%FF"),
        ("json", b""),
        ("json", b"{"),
        ("json", b"unquoted"),
        ("json", b"NaN"),
        ("json", b"-Infinity"),
        ("json", b"1e400"),
        ("json", b"9007199254740993"),
        ("json", b"1" * 5000),
        ("json", b'"%5Cud800"'),
        ("json", b"%FF"),
        ("json", b'{"region":"eu","region":"us"}'),
        ("avro", b"{"),
        ("avro", b"NaN"),
        ("avro", b"1.5"),
        ("avro", b"1e3"),
        ("avro", b'"%5Cud800"'),
        ("avro", b"1" * 5000),
        ("avro", b'{"region":"eu","region":"us"}'),
    ],
)
def test_a_segment_that_is_no_key_of_the_codec_is_a_bad_key(name: str, segment: bytes) -> None:
    with pytest.raises(BadKey) as caught:
        from_segment(KEY_CODECS[name], segment)
    assert caught.value.status == 400
    json.loads(caught.value.body())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("string", 1),
        ("string", None),
        ("string", ["a"]),
        ("string", "\ud800"),
        ("int32", "1"),
        ("int32", 1.0),
        ("int32", True),
        ("int32", None),
        ("int32", 2**31),
        ("int64", -(2**63) - 1),
        ("bytes", 1),
        ("bytes", None),
        ("bytes", "not base64url!"),
        ("bytes", "é"),
        ("json", math.nan),
        ("json", math.inf),
        ("json", 2**53 + 1),
        ("json", "\ud800"),
        ("json", {"\ud800": 1}),
    ],
)
def test_json_key_of_the_wrong_type_is_a_bad_key(name: str, key: Any) -> None:
    """The problem names the codec or the fault."""
    with pytest.raises(BadKey) as caught:
        KEY_CODECS[name].from_json(key)
    assert caught.value.detail.startswith("The key ")
    json.loads(caught.value.body())


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (b'{ "b" : 1, "a" : [1.0, 2] }', b'{"a":[1,2],"b":1}'),
        (b"[333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001]",
         b"[333333333.3333333,1e+30,4.5,0.002,1e-27]"),
        (rb'"\u20ac$\u000F\u000aA\u0042\u0022\u005c\\\"\/"', '"€$\\u000f\\nAB\\"\\\\\\\\\\"/"'.encode()),
        (b"-0.0", b"0"),
        (b"[null, true, false]", b"[null,true,false]"),
        ('{"\u20ac":1,"\\r":2,"\U0001f600":3,"1":4,"\ufb33":5}'.encode(),
         '{"\\r":2,"1":4,"\u20ac":1,"\U0001f600":3,"\ufb33":5}'.encode()),
    ],
)  # fmt: skip
def test_json_keys_are_written_in_one_canonical_form(text: bytes, canonical: bytes) -> None:
    assert KEY_CODECS["json"].from_text(text) == canonical


@repeatable
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_one_json_key_spelt_twice_is_one_key(key: dict[str, Any]) -> None:
    codec = KEY_CODECS["json"]
    spelt = json.dumps(dict(reversed(key.items())), indent=2, ensure_ascii=True).encode()
    assert codec.from_text(spelt) == codec.from_json(key)


def test_a_string_value_that_is_not_utf8_is_shown_all_the_same() -> None:
    assert json.loads(VALUE_CODECS["string"].to_json(b"a\xff")) == "a\ufffd"
