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


RawFigures = tuple[bytes | None, bytes | None, bytes | None, bytes | None]
"""Record lag, time lag, age and role, unparsed."""


@lru_cache(maxsize=1024)
def raw_figures(head: bytes) -> RawFigures | None:
    """The contents of header lines, in the order in which they are sent; None if they contain no figures.

    Unparsed: many answers have identical ones.
    """
    at = head.find(b"forebay-")
    found = None if at < 0 else _LINES.match(head, at)
    return None if found is None else (found[1], found[2], found[3], found[4])


def read_figures(raw: RawFigures) -> ReportedProvenance:
    """Parsed raw figures."""
    record_lag, time_lag_ms, age_ms, role = raw
    return ReportedProvenance(
        "" if role is None else role.decode(), Lag(_number(record_lag), _number(time_lag_ms), _number(age_ms))
    )


def reported_in(head: bytes) -> ReportedProvenance | None:
    """The parsed contents of header lines; None if they contain no figures."""
    raw = raw_figures(head)
    return None if raw is None else read_figures(raw)


def _number(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)
