"""Reads a Structured Streaming checkpoint from its files: state, its changes and its schemas, without a JVM.

Beside ``forebay_spark`` and not below it, since importing that imports pyspark, which reading files does not need.
"""
