"""Checks a worker's status as a whole, before anything of it is adopted."""

from __future__ import annotations

from forebay.streams_metadata import HostInfo
from forebay.wire.answer_schemas.reading import read_json
from forebay.wire.answer_schemas.status import StatusReport


def read_status(body: bytes) -> tuple[HostInfo, StatusReport]:
    """A worker's address and its status; raises ``ValueError``, naming what is wrong, unless it is whole.

    One bad row would otherwise fail every read that it concerns, even where an honest replica exists.
    """
    status = read_json(body, StatusReport)
    return HostInfo.parse(status.host), status
