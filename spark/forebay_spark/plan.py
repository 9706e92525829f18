"""What the analysed plan of a streaming DataFrame shows before its query starts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

_SOURCE = "StreamingRelationV2"
_MIN_RECORDS = "minOffsetsPerTrigger"
_ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias")
_DEDUPLICATIONS = ("Deduplicate", "DeduplicateWithinWatermark")
_CHECKED = "spark.sql.streaming.unsupportedOperationCheck"


def mode_refusal(df: DataFrame, mode: str) -> str | None:
    """Why Spark does not run a streaming DataFrame in an output mode, None if it does."""
    session = df.sparkSession
    if str(session.conf.get(_CHECKED, "true")).lower() != "true":
        return None
    jvm = session._jvm
    assert jvm is not None
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analysed(df), modes.Append() if mode == "append" else modes.Update())
    except AnalysisException as error:
        # After it, Spark prints the whole plan.
        return str(error).partition("\n")[0].rstrip(";. ")
    return None


def complete_mode(what: str) -> str:
    """Why a query in complete mode is not written."""
    return (
        f"{what!r}: the output mode 'complete' would write every key in every batch and never report deletions; "
        "use 'update' or 'append'."
    )


def holds_records_back(plan: Any) -> bool:
    """Whether a source of a streaming plan keeps records back until there are enough of them.

    Spark reports such a query as idle meanwhile. Kafka's source is the only one that does.
    """
    sources = [leaf for leaf in _elements(plan.collectLeaves()) if leaf.getClass().getSimpleName() == _SOURCE]
    return any(source.extraOptions().get(_MIN_RECORDS) is not None for source in sources)


def has_one_row_a_key(df: DataFrame, key: Collection[str | None]) -> bool:
    """Whether the plan of a streaming DataFrame shows that each batch has at most one row of a key.

    ``key`` are the columns that tell keys apart; None stands for none. It does where, below projections and
    filters, an aggregation or ``dropDuplicates`` groups by such columns only, and they come through unchanged.
    """
    node = analysed(df)
    ids = {column.exprId().id() for column in _elements(node.output()) if column.name() in key}
    while (kind := node.getClass().getSimpleName()) in _ROW_BY_ROW:
        if kind == "Project":
            sources = _made_of(node.projectList(), ids)
            ids = {one.exprId().id() for one in sources if one.getClass().getSimpleName() == "AttributeReference"}
        node = node.child()
    if kind == "Aggregate":
        columns = _made_of(node.aggregateExpressions(), ids)
        grouping = _elements(node.groupingExpressions())
        return all(any(column.semanticEquals(one) for column in columns) for one in grouping)
    return kind in _DEDUPLICATIONS and all(column.exprId().id() in ids for column in _elements(node.keys()))


def _made_of(expressions: Any, ids: Collection[Any]) -> list[Any]:
    """What the columns with these ids are made of: themselves, or what they are another name of."""
    chosen = [one for one in _elements(expressions) if one.exprId().id() in ids]
    return [one.child() if one.getClass().getSimpleName() == "Alias" else one for one in chosen]


def analysed(df: DataFrame) -> Any:
    """The analysed plan of a DataFrame."""
    return df._jdf.queryExecution().analyzed()


def _elements(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(i) for i in range(sequence.size())]
