"""Python imports this when it starts with this directory in ``PYTHONPATH``: others can step its wall clock.

Not by Debian's ``libfaketime``: under it sleeps until a moment that has passed fail with EINVAL.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_STEP = struct.Struct("d")
_real = time.time


def _stepped(path: Path) -> None:
    with path.open("rb") as file:
        step_s = mmap.mmap(file.fileno(), _STEP.size, access=mmap.ACCESS_READ)

    def stepped() -> float:
        seconds: float = _STEP.unpack_from(step_s)[0]
        return _real() + seconds

    time.time = stepped
    time.time_ns = lambda: int(stepped() * 1e9)


if "STEPPED_CLOCK" in os.environ:
    _stepped(Path(os.environ["STEPPED_CLOCK"]))
