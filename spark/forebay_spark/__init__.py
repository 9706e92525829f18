"""The Spark side: a sink that writes streaming queries' results to a changelog."""

from forebay_spark.columns import ColumnArguments
from forebay_spark.fill import FillResult
from forebay_spark.sink import Sink
from forebay_spark.sink_writer import SinkWriter

__all__ = ["ColumnArguments", "FillResult", "Sink", "SinkWriter"]
