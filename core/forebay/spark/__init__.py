"""The Spark side: a sink that writes streaming queries' results to a changelog."""

from forebay.spark.columns import ColumnArguments
from forebay.spark.fill import FillResult
from forebay.spark.sink import Sink
from forebay.spark.sink_writer import SinkWriter

__all__ = ["ColumnArguments", "FillResult", "Sink", "SinkWriter"]
