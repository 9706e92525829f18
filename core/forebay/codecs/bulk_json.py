"""The JSON texts of many keys or values at once."""

from __future__ import annotations

from forebay.codecs.keys import JsonKey, KeyCodec, StringKey
from forebay.codecs.raw_bytes import AS_IT_IS_IN_JSON
from forebay.codecs.values import JsonValue, StringValue, ValueCodec


def all_to_json(codec: KeyCodec | ValueCodec, plains: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The JSON text of each, as a form and what to fill it with: ``form % (filling,)``.

    Texts and JSON as a rule are filled in as they are, which takes a fraction of the time.
    """
    if isinstance(codec, JsonKey | JsonValue):
        return b"%b", plains
    if isinstance(codec, StringKey | StringValue) and not b"".join(plains).translate(None, AS_IT_IS_IN_JSON):
        return b'"%b"', plains
    return b"%b", [codec.to_json(plain) for plain in plains]
