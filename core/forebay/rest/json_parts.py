"""JSON documents of any length, written and read in steps that each take a fraction of a millisecond."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any

from forebay.rest.answers import JSON_HEAD, NO_STORE, HttpAnswer
from forebay.rest.turns import in_turns

_TOGETHER = 16
"""Elements of an array that are written, or read, in one step."""
_MOST_AT_ONCE_BYTES = 16 << 10
"""A longer document is read in steps."""
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


async def json_answer_in_turns(document: Any) -> HttpAnswer:
    """The same as ``json_answer``, for a document whose long arrays may be iterators, which make the elements."""
    parts = await in_turns(json_parts(document))
    return HttpAnswer(200, JSON_HEAD + NO_STORE, b"".join(parts))


def json_parts(value: Any) -> Iterator[bytes]:
    """The JSON of a value; an iterator is an array, too."""
    if isinstance(value, Iterator) or (isinstance(value, list) and len(value) > _TOGETHER):
        yield from _array(_chunks(iter(value)))
    elif _is_long(value):
        between = b"{"
        for name, member in value.items():
            yield between + _text(name) + b":"
            yield from json_parts(member)
            between = b","
        yield b"}"
    else:
        yield _text(value)


def _is_long(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(member, list | Iterator) for member in value.values())


def _chunks(elements: Iterator[Any]) -> Iterator[Iterable[bytes]]:
    """The JSON of some short elements together, or of a long one."""
    for element in elements:
        if _is_long(element):
            yield json_parts(element)
        else:
            yield [_text([element, *islice(elements, _TOGETHER - 1)])[1:-1]]


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
        if depth == 1:
            value, at = _DECODER.raw_decode(text, at)
            at = _after(text, at)
        else:
            value, at = yield from _reading(text, at, depth - 1)
        elements.append(value if name is None else (name, value))
        if len(elements) % _TOGETHER == 0:
            yield
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
