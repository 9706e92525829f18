"""``batch-get``: several keys at once, each with its own answer or problem."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from forebay.codecs.keys import MAX_KEY_BYTES, KeyCodec, key_too_long
from forebay.errors import AnswerTooLarge, BadRequest, Problem
from forebay.event_loop_turns import in_turns
from forebay.wire.answers import JSON_HEAD, NO_STORE, HttpAnswer, problem_answer
from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE

MAX_KEYS = 500
MAX_BODY_BYTES = 2 << 20
_MAX_AT_ONCE_BYTES = 16 << 10
"""A larger body is read key by key, in turns with other work: half a millisecond's worth."""
_MAX_TEXT = 16
"""Characters of JSON for one byte of a key at most: six for an escaped control character, more for indentation."""
_LONGEST_LITERAL = 12
"""Characters in which a piece's end may show as another fault: of ``true``, or of an escape."""
_BEGIN = re.compile(r'[ \t\n\r]*+\{[ \t\n\r]*+"keys"[ \t\n\r]*+:[ \t\n\r]*+\[[ \t\n\r]*+')
_BETWEEN = re.compile(r"[ \t\n\r]*+,[ \t\n\r]*+")
_LIST_END = re.compile(r"[ \t\n\r]*+\]")
_END = re.compile(r"[ \t\n\r]*+\][ \t\n\r]*+\}[ \t\n\r]*+\Z")
KeyResult = tuple[int, bytes]
"""The result for one key: a status and, as JSON, the answer or the problem."""
FRAMES_HEAD = b"content-type: " + FRAMES_MEDIA_TYPE.encode() + b"\r\n" + NO_STORE


def key_result(answer: HttpAnswer) -> KeyResult:
    """The result for a key in an answer."""
    return answer.status, answer.body


class BatchKeys(NamedTuple):
    """The keys of a request: their values, and for a large one their texts as received."""

    values: Sequence[Any]
    texts: Sequence[bytes] | None = None

    @property
    def large(self) -> bool:
        """Whether what is done for each key may take long altogether."""
        return self.texts is not None

    def text(self, place: int) -> bytes:
        """The JSON of a key."""
        return json.dumps(self.values[place]).encode() if self.texts is None else self.texts[place]

    def body(self, places: Sequence[int]) -> bytes:
        """A request for some of them."""
        if self.texts is None:
            # Not escaped to ASCII, which could make it longer than a worker accepts.
            return json.dumps({"keys": [self.values[place] for place in places]}, ensure_ascii=False).encode()
        return b'{"keys":[%b]}' % b",".join([self.texts[place] for place in places])


def is_large(body: bytes) -> bool:
    """Whether a request's body takes too long to be read at once."""
    return len(body) > _MAX_AT_ONCE_BYTES


async def read_batch(body: bytes) -> BatchKeys:
    """The keys of a request body of any size; raises as ``read_batch_keys``."""
    if not is_large(body):
        return read_batch_keys(body)
    keys = await in_turns(_keys_one_by_one(body))
    return BatchKeys([value for value, _ in keys], [text for _, text in keys])


def read_batch_keys(body: bytes) -> BatchKeys:
    """The keys of a small request body ``{"keys": […]}``; raises ``BadRequest``, or ``BadKey`` for one that is too
    long."""
    try:
        document = json.loads(body, parse_float=_finite, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _no_json() from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or set(document) != {"keys"}:
        raise _no_batch()
    if len(keys) > MAX_KEYS:
        raise _too_many(len(keys))
    if len(body) > MAX_KEY_BYTES:
        for place, key in enumerate(keys):
            if _is_longer(key, MAX_KEY_BYTES):
                raise key_too_long(f"keys[{place}]")
    return BatchKeys(keys)


def _keys_one_by_one(body: bytes) -> Iterator[tuple[Any, bytes]]:
    """Values and texts of the keys; nothing is read further than a key of the longest kind reaches."""
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass").removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise _no_json() from None
    begin = _BEGIN.match(text)
    if begin is None:
        raise _no_batch()
    at, place = begin.end(), 0
    max_characters = _MAX_TEXT * MAX_KEY_BYTES
    end = _END.match(text, at)
    while end is None:
        if place == MAX_KEYS:
            raise _too_many()
        piece = text[at : at + max_characters + 1]
        try:
            value, length = _DECODER.raw_decode(piece)
        except json.JSONDecodeError as error:
            if len(piece) > max_characters and _is_cut(piece, error):
                raise key_too_long(f"keys[{place}]") from None
            raise _no_json() from None
        except (ValueError, RecursionError):
            raise _no_json() from None
        if length > max_characters or _is_longer(value, MAX_KEY_BYTES):
            raise key_too_long(f"keys[{place}]")
        yield value, _utf8(piece[:length], value)
        place += 1
        at += length
        end = _END.match(text, at)
        if end is None:
            between = _BETWEEN.match(text, at)
            if between is None:
                raise _no_batch() if _LIST_END.match(text, at) else _no_json()
            at = between.end()


def _utf8(text: str, value: Any) -> bytes:
    """A key's text as it was received, or escaped where that is no UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _is_cut(piece: str, error: json.JSONDecodeError) -> bool:
    """Whether a piece is wrong only because it ends: a string is reported where it begins."""
    return error.pos >= len(piece) - _LONGEST_LITERAL or error.msg.startswith("Unterminated string")


def _no_json() -> BadRequest:
    return BadRequest('The body is not JSON; send {"keys": […]}.')


def _no_batch() -> BadRequest:
    return BadRequest('The body must be {"keys": […]} and nothing else.')


def _too_many(keys: int | None = None) -> BadRequest:
    found = "These" if keys is None else str(keys)
    return BadRequest(f"{found} keys are more than {MAX_KEYS}; send them in several requests.")


def _is_longer(key: Any, max_bytes: int) -> bool:
    """Whether a key's JSON is surely longer than allowed, at the cost of counting its values."""
    if isinstance(key, str):
        return len(key) > max_bytes
    left, waiting = max_bytes, [key]
    while waiting:
        value = waiting.pop()
        # Each takes a comma or a bracket at least.
        left -= 1 + (len(value) if isinstance(value, str) else 0)
        if left < 0:
            return True
        if isinstance(value, dict):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list):
            if len(value) > left:
                return True
            waiting += value
    return False


def _finite(text: str) -> float:
    """Python also reads 1e400, which has no valid JSON form."""
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


async def read_plain(codec: KeyCodec, keys: BatchKeys) -> tuple[list[tuple[int, bytes]], dict[int, KeyResult]]:
    """The same as ``read_plain_keys``, for any number of keys of any length."""
    if not keys.large:
        return read_plain_keys(codec, keys.values)
    return _parted(await in_turns(_plain_or_fault(codec, key) for key in keys.values))


def _plain_or_fault(codec: KeyCodec, key: Any) -> bytes | KeyResult:
    try:
        return codec.from_json(key)
    except Problem as problem:
        return key_result(problem_answer(problem))


def read_plain_keys(codec: KeyCodec, keys: Sequence[Any]) -> tuple[list[tuple[int, bytes]], dict[int, KeyResult]]:
    """Places and plain bytes of a batch's keys; by place, the results of those that are no keys of the codec."""
    from_json = codec.from_json
    try:
        # Nearly always; one by one takes twice as long.
        return list(enumerate(map(from_json, keys))), {}
    except Problem:
        found = [_plain_or_fault(codec, key) for key in keys]
        return _parted(found)


def _parted(found: Sequence[bytes | KeyResult]) -> tuple[list[tuple[int, bytes]], dict[int, KeyResult]]:
    plains = [(place, plain) for place, plain in enumerate(found) if isinstance(plain, bytes)]
    return plains, {place: fault for place, fault in enumerate(found) if not isinstance(fault, bytes)}


def require_size(answer_bytes: int, max_bytes: int) -> None:
    """Raise ``AnswerTooLarge`` if an answer would be larger than allowed."""
    if answer_bytes > max_bytes:
        raise AnswerTooLarge(f"The values of these keys take more than {max_bytes} bytes; ask for fewer keys.")


def batch_answer(keys: BatchKeys, results: Sequence[KeyResult], *, frames: bool = False) -> HttpAnswer:
    """The answer with these keys' results, in order; anything but a single answer becomes a problem of its key.

    In frames for a router, as MessagePack, in which no JSON need be parsed.
    """
    if frames:
        return _batch_frames(results)
    parts = [
        body if status == 200 else problem_result(keys, place, body)
        for place, (status, body) in enumerate(results)
    ]
    return HttpAnswer(200, JSON_HEAD + NO_STORE, b'{"results":[%b]}' % b",".join(parts))


def problem_result(keys: BatchKeys, place: int, problem: bytes) -> bytes:
    """The JSON of the result for a key with a problem."""
    return b'{"key":%b,"problem":%b}' % (keys.text(place), problem)


def _batch_frames(results: Sequence[KeyResult]) -> HttpAnswer:
    statuses, bodies = zip(*results, strict=True) if results else ((), ())
    return HttpAnswer(200, FRAMES_HEAD, msgspec.msgpack.encode((statuses, bodies)))


_decode_frames = msgspec.msgpack.Decoder(tuple[list[int], list[memoryview]]).decode


def read_batch_frames(raw: bytes, count: int) -> tuple[list[int], list[memoryview]]:
    """Statuses and bodies of an answer in frames, in order; raises ``ValueError`` unless there are so many."""
    try:
        statuses, bodies = _decode_frames(raw)
    except ValueError as error:
        raise ValueError(f"answered with something other than a batch: {error}") from None
    if not len(statuses) == len(bodies) == count:
        raise ValueError(f"answered with something other than a batch: it has no {count} results")
    return statuses, bodies
