"""Reads the state of the answering replica from an answer's header lines."""

from __future__ import annotations

import re
from typing import NamedTuple

from forebay.lag import Lag

_LINES = re.compile(
    rb"(?:forebay-record-lag: (\d+)\r\n)?(?:forebay-time-lag-ms: (\d+)\r\n)?(?:forebay-age-ms: (\d+)\r\n)?"
    rb"(?:forebay-position: [^\r]*\r\n)?(?:forebay-role: (\w+)\r\n)?"
)


class ReportedReplica(NamedTuple):
    """Role, empty if several replicas answered, and lag."""

    role: str
    lag: Lag


def reported_in(head: bytes) -> ReportedReplica | None:
    """The contents of header lines, in the order in which they are sent; None if they contain no figures."""
    at = head.find(b"forebay-")
    found = None if at < 0 else _LINES.match(head, at)
    if found is None:
        return None
    record_lag, time_lag_ms, age_ms, role = found.groups()
    return ReportedReplica(
        "" if role is None else role.decode(), Lag(_number(record_lag), _number(time_lag_ms), _number(age_ms))
    )


def _number(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
