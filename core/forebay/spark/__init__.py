"""The Spark side: a sink that writes streaming queries' results to a changelog."""

from forebay.spark.sink import Sink, SinkWriter

__all__ = ["Sink", "SinkWriter"]
