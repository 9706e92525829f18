"""JSON documents of any length, written and read in steps that each take a fraction of a millisecond."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any

from forebay.rest.answers import JSON_HEAD, NO_STORE, HttpAnswer
from forebay.rest.large_answers import MOST_AT_ONCE_BYTES, LargeAnswer
from forebay.rest.turns import in_turns

_TOGETHER = 32
"""Elements of an array that are written with one call."""
_MOST_AT_ONCE_BYTES = 16 << 10
"""A longer document is read in steps."""
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


async def json_answer_in_turns(document: Any) -> HttpAnswer | LargeAnswer:
    """The same as ``json_answer``, for a document whose long arrays may be iterators, which make the elements."""
    parts = await in_turns(json_parts(document))
    if sum(map(len, parts)) > MOST_AT_ONCE_BYTES:
        return LargeAnswer(200, JSON_HEAD + NO_STORE, parts)
    return HttpAnswer(200, JSON_HEAD + NO_STORE, b"".join(parts))


def json_parts(value: Any) -> Iterator[bytes]:
    """The JSON of a value; an iterator is an array whose elements are written one by one."""
    if isinstance(value, Iterator):
        yield from _array(map(json_parts, value))
    elif isinstance(value, list) and len(value) > _TOGETHER:
        together = iter(value)
        chunks = iter(lambda: list(islice(together, _TOGETHER)), [])
        yield from _array([_text(chunk)[1:-1]] for chunk in chunks)
    elif isinstance(value, dict) and any(isinstance(member, list | Iterator) for member in value.values()):
        between = b"{"
        for name, member in value.items():
            yield between + _text(name) + b":"
            yield from json_parts(member)
            between = b","
        yield b"}"
    else:
        yield _text(value)


def _array(elements: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    between = b"["
    for element in elements:
        yield between
        yield from element
        between = b","
    yield b"]" if between == b"," else b"[]"


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def reading_json(text: str, depth: int) -> Generator[None, None, Any]:
    """Read a document, whose arrays and objects down to a depth are read element by element.

    Raises ``ValueError``.
    """
    if len(text) <= _MOST_AT_ONCE_BYTES:
        return json.loads(text)
    try:
        value, end = yield from _reading(text, _after(text, 0), depth)
    except IndexError:
        raise ValueError("it is cut") from None
    if end != len(text):
        raise ValueError("something follows it")
    return value


def _reading(text: str, at: int, depth: int) -> Generator[None, None, tuple[Any, int]]:
    """The value that begins somewhere, and where what follows it begins."""
    if not depth or text[at] not in "[{":
        value, at = _DECODER.raw_decode(text, at)
        yield
        return value, _after(text, at)
    closing = "]" if text[at] == "[" else "}"
    elements: list[Any] = []
    at = _after(text, at + 1)
    while text[at] != closing:
        if elements:
            at = _after_one(text, at, ",")
        name = None
        if closing == "}":
            name, at = _DECODER.raw_decode(text, at)
            at = _after_one(text, _after(text, at), ":")
        value, at = yield from _reading(text, at, depth - 1)
        elements.append(value if name is None else (name, value))
    return elements if closing == "]" else dict(elements), _after(text, at + 1)


def elements_of(text: str, member: str) -> Iterator[Any]:
    """The elements of an array that is a member of an object, each read when it is taken."""
    at = _after(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _after_one(text, _after(text, at), ":")
        if name == member:
            at += 1
            while text[at := _after(text, at)] != "]":
                element, at = _DECODER.raw_decode(text, _after(text, at + 1) if text[at] == "," else at)
                yield element
            return
        _, at = _DECODER.raw_decode(text, at)
        at = _after(text, at)
        at = at if text[at] == "}" else _after_one(text, at, ",")


def _after_one(text: str, at: int, expected: str) -> int:
    if text[at] != expected:
        raise ValueError(f"{expected!r} is missing at character {at}")
    return _after(text, at + 1)


def _after(text: str, at: int) -> int:
    """Where something begins after white space."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
