"""Wall clocks that can be stepped; the other clocks stay the machine's."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

_STARTED_WITH = Path(__file__).parent / "stepped_clock"


class WallClock:
    """That of one node's processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(struct.pack("d", 0.0))

    def step(self, seconds: float) -> None:
        """Set it so far before the machine's, behind it if negative."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    def environment(self) -> Mapping[str, str]:
        """What processes need to have it."""
        return {"STEPPED_CLOCK": str(self._path), "PYTHONPATH": str(_STARTED_WITH)}
