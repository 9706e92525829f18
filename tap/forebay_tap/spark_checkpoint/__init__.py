"""Reads a Structured Streaming checkpoint from its files: state, its changes and its schemas, without a JVM.

Beside ``forebay_spark`` and not below it, since importing that imports pyspark, which reading files does not need.
"""

from forebay_tap.spark_checkpoint.changes import Change, StateEntry
from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.files import CheckpointFiles, FileStatus, open_files
from forebay_tap.spark_checkpoint.logs import Commit, Offsets
from forebay_tap.spark_checkpoint.operators import Operator, StateVariable, Store
from forebay_tap.spark_checkpoint.schemas import ColumnFamily

__all__ = [
    "Change",
    "Checkpoint",
    "CheckpointFiles",
    "ColumnFamily",
    "Commit",
    "FileStatus",
    "Offsets",
    "Operator",
    "StateEntry",
    "StateVariable",
    "Store",
    "open_files",
]
