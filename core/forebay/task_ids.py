"""Tasks and topic-partitions, the units of assignment and of replay."""

from __future__ import annotations

import re
from typing import NamedTuple

_TASK_ID = re.compile(r"(0|[1-9][0-9]*)_(0|[1-9][0-9]*)")


class TaskId(NamedTuple):
    """Partition ``partition`` of every store of the sub-topology with this ordinal, written ``2_14``."""

    ordinal: int
    partition: int

    def __str__(self) -> str:
        return f"{self.ordinal}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Read ``<ordinal>_<partition>``; raises ``ValueError`` naming the text."""
        match = _TASK_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a task id of the form <ordinal>_<partition>")
        return cls(int(match[1]), int(match[2]))


class TopicPartition(NamedTuple):
    """One partition of a changelog topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
