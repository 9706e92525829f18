"""The state tap: writes what Spark keeps in a query's checkpoint to the logs of stores, without a JVM.

The job is not touched: its checkpoint is read once a batch has been committed, and each batch's changes follow
those of the one before in the log. See ``forebay_tap.spark_checkpoint`` for how state is decoded.
"""
