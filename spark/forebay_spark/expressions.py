"""Spark's expressions that several modules need."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def hex64(column: Column) -> Column:
    """The 16 hexadecimal digits of a 64-bit two's complement integer."""
    return F.lpad(F.hex(column.cast("long")), 16, "0")


def quoted(name: str) -> str:
    """A column's name as Spark reads it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"
