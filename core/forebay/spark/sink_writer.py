"""What ``Sink.write`` returns: Spark's own writer, which can write to the sink only."""

from __future__ import annotations

import time
from typing import Any, NoReturn

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from forebay.errors import SinkError
from forebay.spark.write import WRITES, Write


class SinkWriter(DataStreamWriter):
    """Spark's own writer, set up for the sink: update mode (append for session stores), named by its writer."""

    def __init__(self, df: DataFrame, write: Write) -> None:
        super().__init__(df)
        self._write_to = write
        self._available_now = False
        session_store = write.spec.kind == "session"
        self.queryName(write.writer)
        self.outputMode("append" if session_store else "update")
        super().foreachBatch(write.batch)

    @property
    def store(self) -> str:
        """The store written to."""
        return self._write_to.spec.name

    def outputMode(self, outputMode: str) -> SinkWriter:
        """Update or append; complete mode is refused with ``SinkError``."""
        if outputMode.lower() not in ("update", "append"):
            raise SinkError(
                f"{self._write_to.spec.name!r}: the output mode {outputMode!r} would write every key in every "
                "batch and never report deletions; use 'update' or 'append'."
            )
        super().outputMode(outputMode)
        return self

    def foreachBatch(self, func: Any) -> NoReturn:
        """Refused with ``SinkError``: the sink is what each batch goes to."""
        raise self._elsewhere("foreachBatch")

    def foreach(self, f: Any) -> NoReturn:
        """Refused with ``SinkError``."""
        raise self._elsewhere("foreach")

    def format(self, source: str) -> NoReturn:
        """Refused with ``SinkError``."""
        raise self._elsewhere("format")

    def toTable(self, *args: Any, **options: Any) -> NoReturn:
        """Refused with ``SinkError``."""
        raise self._elsewhere("toTable")

    def _elsewhere(self, method: str) -> SinkError:
        return SinkError(
            f"{self.store!r}: after {method}() the query would no longer write to the store. Start another query "
            "for it."
        )

    def trigger(self, *args: Any, **options: Any) -> SinkWriter:
        """The query's trigger, as for Spark's own writer."""
        super().trigger(*args, **options)
        self._available_now = bool(options.get("availableNow"))
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StreamingQuery:
        """Start the query, as Spark's own writer does."""
        if path is not None or format is not None:
            raise self._elsewhere("start(path, format)")
        if outputMode is not None:
            self.outputMode(outputMode)
        self._write_to.as_of_limit_ms = time.time_ns() // 1_000_000 if self._available_now else None
        query = super().start(None, None, None, partitionBy, queryName, **options)
        WRITES[str(query.id)] = self._write_to
        return query
