"""Reads the state of the answering replica from an answer's header lines."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from forebay.lag import Lag

_LINES = re.compile(
    rb"(?:forebay-record-lag: (\d+)\r\n)?(?:forebay-time-lag-ms: (\d+)\r\n)?(?:forebay-age-ms: (\d+)\r\n)?"
    rb"(?:forebay-position: [^\r]*\r\n)?(?:forebay-role: (\w+)\r\n)?"
)


class ReportedProvenance(NamedTuple):
    """Role, empty if several replicas answered, and lag."""

    role: str
    lag: Lag


def reported_in(head: bytes) -> ReportedProvenance | None:
    """The contents of header lines, in the order in which they are sent; None if they contain no figures."""
    found = _match(head)
    if found is None:
        return None
    record_lag, time_lag_ms, age_ms, role = found.groups()
    return ReportedProvenance(
        "" if role is None else role.decode(), Lag(_number(record_lag), _number(time_lag_ms), _number(age_ms))
    )


RawFigures = tuple[bytes | None, bytes | None, bytes | None]
"""Record lag, time lag and role, unparsed."""


@lru_cache(maxsize=1024)
def raw_figures(head: bytes) -> RawFigures | None:
    """The same without age, unparsed: many answers have identical ones."""
    found = _match(head)
    return None if found is None else (found[1], found[2], found[4])


def read_figures(raw: RawFigures) -> ReportedProvenance:
    """Parsed raw figures; age is not among them."""
    record_lag, time_lag_ms, role = raw
    return ReportedProvenance(
        "" if role is None else role.decode(), Lag(_number(record_lag), _number(time_lag_ms), None)
    )


def _match(head: bytes) -> re.Match[bytes] | None:
    at = head.find(b"forebay-")
    return None if at < 0 else _LINES.match(head, at)


def _number(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
