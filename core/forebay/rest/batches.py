"""``batch-get``: several keys at once, each with its own answer or problem."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from forebay.errors import BadRequest
from forebay.rest.answers import JSON_HEAD, NO_STORE, Answer
from forebay.rest.scans import FRAMES_MEDIA_TYPE

MOST_KEYS = 500
MOST_BODY_BYTES = 2 << 20
_FRAME = struct.Struct(">HI")


def read_batch_keys(body: bytes) -> list[Any]:
    """The keys of a request body ``{"keys": […]}``; raises ``BadRequest``."""
    try:
        document = json.loads(body)
        # Python reads NaN and 1e400, which are no JSON to answer with.
        json.dumps(document, allow_nan=False)
    except (ValueError, RecursionError):
        raise BadRequest('The body is not JSON; send {"keys": […]}.') from None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list) or set(document) != {"keys"}:
        raise BadRequest('The body must be {"keys": […]} and nothing else.')
    if len(keys) > MOST_KEYS:
        raise BadRequest(f"{len(keys)} keys are more than {MOST_KEYS}; send them in several requests.")
    return keys


def batch_answer(keys: Sequence[Any], results: Sequence[Answer]) -> Answer:
    """The answer of these keys' results, in order; what is no single answer is told as a problem of its key."""
    parts = [
        result.body
        if result.status == 200
        else b'{"key":%b,"problem":%b}' % (json.dumps(key).encode(), result.body)
        for key, result in zip(keys, results, strict=True)
    ]
    return Answer(200, JSON_HEAD + NO_STORE, b'{"results":[%b]}' % b",".join(parts))


def batch_frames(results: Sequence[Answer]) -> Answer:
    """The same for a router: each result's status stands before it, so that no JSON is parsed."""
    parts: list[bytes] = []
    for status, _, body in results:
        parts += (_FRAME.pack(status, len(body)), body)
    return Answer(200, b"content-type: " + FRAMES_MEDIA_TYPE.encode() + b"\r\n" + NO_STORE, b"".join(parts))


def read_batch_frames(raw: bytes) -> list[Answer]:
    """The inverse of ``batch_frames``; the results have no headers."""
    results, at = [], 0
    while at < len(raw):
        status, size = _FRAME.unpack_from(raw, at)
        at += _FRAME.size
        results.append(Answer(status, b"", raw[at : at + size]))
        at += size
    return results
