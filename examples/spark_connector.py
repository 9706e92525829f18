"""Spark's Kafka connector for the PySpark that is installed."""

from __future__ import annotations

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONNECTORS = {"4.0": "4.0.0", "4.1": "4.1.1", "4.2": "4.2.0"}
"""By Spark minor, the newest version that Maven Central has together with its token provider."""


def spark_minor() -> str:
    """The minor of the PySpark that is installed: ``4.2``."""
    return ".".join(version("pyspark").split(".")[:2])


def spark_connector() -> str:
    """The connector, in the form of ``spark.jars``; raises ``FileNotFoundError`` where there is none."""
    minor = spark_minor()
    if minor not in CONNECTORS:
        raise FileNotFoundError(f"Maven Central has no Kafka connector for Spark {minor}.")
    if shutil.which("mvn") is None:
        raise FileNotFoundError("Spark's Kafka connector needs 'mvn' here, which is not on the PATH.")
    subprocess.run([ROOT / "scripts" / "jars" / "fetch", "spark-kafka", CONNECTORS[minor]], check=True)
    directory = ROOT / ".jars" / f"spark-kafka-{CONNECTORS[minor]}"
    return ",".join(str(path) for path in sorted(directory.glob("*.jar")))
