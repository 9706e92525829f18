"""Turns failed responses into exceptions."""

from __future__ import annotations

import json

import httpx

from forebay.errors import Problem
from forebay.wire.answers import problem_of


def problem_of_response(response: httpx.Response, via: str = "") -> Problem:
    """The exception for a failed response; the message points out one without a problem document, as from a proxy.

    ``via`` is added there, such as ``", through the proxy http://127.0.0.1:3128 of HTTP_PROXY"``.
    """
    retry_after = response.headers.get("retry-after", "")
    retry_after_s = int(retry_after) if retry_after.isdecimal() else None
    try:
        document = json.loads(response.content)
    except ValueError:
        document = None
    if not isinstance(document, dict) or "type" not in document:
        status_line = f"{response.status_code} {response.reason_phrase}"
        document = {
            "type": "about:blank",
            "title": response.reason_phrase,
            "status": response.status_code,
            "detail": f"{response.url} answered {status_line} without a problem document{via}: "
            "that server is neither a router nor a worker.",
        }
    problem = problem_of(document, retry_after_s)
    # Also for an unknown type.
    problem.status = response.status_code
    return problem
