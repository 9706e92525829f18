"""``batch-get``: several keys at once, each with its own answer or problem."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import msgpack

from forebay.codecs import KeyCodec
from forebay.errors import AnswerTooLarge, BadKey, BadRequest, Problem
from forebay.rest.answers import JSON_HEAD, NO_STORE, HttpAnswer, problem_answer
from forebay.rest.scans import FRAMES_MEDIA_TYPE

MOST_KEYS = 500
MOST_BODY_BYTES = 2 << 20
KeyResult = tuple[int, bytes]
"""The result for one key: a status and, as JSON, the answer or the problem."""
_FRAMES_HEAD = b"content-type: " + FRAMES_MEDIA_TYPE.encode() + b"\r\n" + NO_STORE


def key_result(answer: HttpAnswer) -> KeyResult:
    """The result for a key in an answer."""
    return answer.status, answer.body


def read_batch_keys(body: bytes, max_key_bytes: int) -> list[Any]:
    """The keys of a request body ``{"keys": […]}``; raises ``BadRequest``, or ``BadKey`` for one that is too
    long."""
    try:
        document = json.loads(body, parse_float=_finite, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise BadRequest('The body is not JSON; send {"keys": […]}.') from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or set(document) != {"keys"}:
        raise BadRequest('The body must be {"keys": […]} and nothing else.')
    if len(keys) > MOST_KEYS:
        raise BadRequest(f"{len(keys)} keys are more than {MOST_KEYS}; send them in several requests.")
    if len(body) > max_key_bytes:
        for place, key in enumerate(keys):
            if _is_longer(key, max_key_bytes):
                raise key_too_long(max_key_bytes, f"keys[{place}]")
    return keys


def key_too_long(max_key_bytes: int, which: str = "The key") -> BadKey:
    """The problem of a key longer than allowed."""
    return BadKey(f"{which} is longer than {max_key_bytes} bytes (max_key_bytes).")


def _is_longer(key: Any, most_bytes: int) -> bool:
    """Whether a key's JSON is surely longer than allowed, at the cost of counting its values."""
    if isinstance(key, str):
        return len(key) > most_bytes
    left, waiting = most_bytes, [key]
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


def read_plain_keys(codec: KeyCodec, keys: Sequence[Any]) -> tuple[list[tuple[int, bytes]], dict[int, KeyResult]]:
    """Places and plain bytes of a batch's keys; by place, the results of those that are no keys of the codec."""
    from_json = codec.from_json
    try:
        # Nearly always; one by one takes twice as long.
        return list(enumerate(map(from_json, keys))), {}
    except Problem:
        plains, faults = [], {}
        for place, key in enumerate(keys):
            try:
                plains.append((place, from_json(key)))
            except Problem as problem:
                faults[place] = key_result(problem_answer(problem))
        return plains, faults


def require_size(answer_bytes: int, most_bytes: int) -> None:
    """Raise ``AnswerTooLarge`` if an answer would be larger than allowed."""
    if answer_bytes > most_bytes:
        raise AnswerTooLarge(
            f"The values of these keys take more than {most_bytes} bytes (max_answer_bytes); ask for fewer keys."
        )


def batch_answer(keys: Sequence[Any], results: Sequence[KeyResult], *, frames: bool = False) -> HttpAnswer:
    """The answer with these keys' results, in order; anything but a single answer becomes a problem of its key.

    In frames for a router, as MessagePack, in which no JSON need be parsed.
    """
    if frames:
        return _batch_frames(results)
    parts = [
        body if status == 200 else b'{"key":%b,"problem":%b}' % (json.dumps(key).encode(), body)
        for key, (status, body) in zip(keys, results, strict=True)
    ]
    return HttpAnswer(200, JSON_HEAD + NO_STORE, b'{"results":[%b]}' % b",".join(parts))


def _batch_frames(results: Sequence[KeyResult]) -> HttpAnswer:
    statuses, bodies = zip(*results, strict=True) if results else ((), ())
    return HttpAnswer(200, _FRAMES_HEAD, msgpack.packb((statuses, bodies)))


def read_batch_frames(raw: bytes, count: int) -> tuple[list[int], list[bytes]]:
    """Statuses and bodies of an answer in frames, in order; raises ``ValueError`` unless there are so many."""
    try:
        statuses, bodies = msgpack.unpackb(raw)
        if (
            len(statuses) == len(bodies) == count
            and {*map(type, statuses)} <= {int}
            and {*map(type, bodies)} <= {bytes}
        ):
            return statuses, bodies
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"answered with something other than a batch: {error}") from None
    raise ValueError("answered with something other than a batch")
