"""The streaming queries of this process that write to stores."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_spark.store_writer import StoreWriter

Output = tuple[str, str, str]
"""The changelog's URL, the topic and the writer's name."""


@dataclass
class QueryRun:
    """One run of a query, from its start to its end, and what it writes.

    ``as_of_limit_ms`` is when it was started, if it asks its sources for their offsets only then; negative if that
    is not known.
    """

    query_id: str
    run_id: str
    as_of_limit_ms: int | None = None
    holds_records_back: bool = False
    """Whether it may be idle although its sources have something new."""
    writers: dict[Output, StoreWriter] = field(default_factory=dict)
    written: dict[Output, int] = field(default_factory=dict)
    """The last batch that was written."""
    failed: dict[Output, int] = field(default_factory=dict)
    """The batch that could not be written and was not repeated since."""


class QueryRuns:
    """By query, its newest run: one started again, perhaps with another sink, takes the place of what it was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, QueryRun] = {}

    def of(self, query_id: str) -> QueryRun | None:
        """The newest run of a query that has written something, or that is to."""
        return self._runs.get(query_id)

    def enter(self, query_id: str, run_id: str) -> tuple[QueryRun, bool]:
        """The run of this id, and whether it is new."""
        with self._lock:
            known = self._runs.get(query_id)
            if known is not None and known.run_id == run_id:
                return known, False
            self._runs[query_id] = run = QueryRun(query_id, run_id)
            return run, True


QUERY_RUNS = QueryRuns()
