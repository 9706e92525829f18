"""The operators of ``ScalaOperators.scala`` as functions of frames; PySpark has Scala's compiler."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame

SOURCE = Path(__file__).parent / "ScalaOperators.scala"
LIBRARIES = Path(pyspark.__file__).parent / "jars"


def compile_operators(directory: Path) -> Path:
    """Compile them into a jar, which the session is to have among ``spark.jars``."""
    jar = directory / "operators.jar"
    compiler = [f"{os.environ['JAVA_HOME']}/bin/java", "-cp", f"{LIBRARIES}/*", "scala.tools.nsc.Main"]
    subprocess.run([*compiler, "-usejavacp", "-d", jar, SOURCE], check=True, timeout=120)
    return jar


def group_state(frame: DataFrame) -> DataFrame:
    """``flatMapGroupsWithState``."""
    return DataFrame(_operators(frame).groupState(frame._jdf), frame.sparkSession)


def processor(frame: DataFrame, delay_ms: int, start_s: int) -> DataFrame:
    """``transformWithState``; delays are those of expiries and timers."""
    return DataFrame(_operators(frame).ledger(frame._jdf, delay_ms, start_s), frame.sparkSession)


def _operators(frame: DataFrame) -> Any:
    return frame.sparkSession._jvm.ScalaOperators
