"""Checks a worker's status as a whole, before anything of it is adopted."""

from __future__ import annotations

import msgspec

from forebay.metadata import HostInfo
from forebay.shapes.status import StatusReport

_decode = msgspec.json.Decoder(StatusReport).decode


def read_status(body: bytes) -> tuple[HostInfo, StatusReport]:
    """A worker's address and its status; raises ``ValueError``, naming what is wrong, unless it is whole.

    One bad row would otherwise fail every read that it concerns, even where an honest replica exists.
    """
    try:
        status = _decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    return HostInfo.parse(status.host), status
