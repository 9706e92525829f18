"""Java here: the command, and how the JVMs of tests and demos start fast."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

KAFKA_JARS = Path(__file__).resolve().parents[1] / ".jars" / "kafka"
WITHOUT_WARNINGS = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Of classes that are in no archive, and of an archive that is another program's."""


def java() -> str:
    """The command, of ``JAVA_HOME`` if that is set."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else "java"


def kafka_classes() -> Path:
    """Where the archive of a broker's classes is, or would be: with its libraries, which it must fit."""
    return KAFKA_JARS / _archive_name()


def spark_classes() -> Path:
    """Where the archive of a Spark driver's classes is, or would be: in the environment that has this PySpark."""
    return Path(sys.prefix) / f"spark-{_archive_name()}"


def spark_options() -> str:
    """What JVMs of Spark start with, for ``JDK_JAVA_OPTIONS``."""
    # Their second compiler costs more than it saves in the minutes that they live.
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {WITHOUT_WARNINGS}"
    return f'{options} -XX:SharedArchiveFile="{spark_classes()}"' if spark_classes().exists() else options


@functools.cache
def _archive_name() -> str:
    """Another for each Java: none takes the archive of another one."""
    try:
        shown = subprocess.run([java(), "-fullversion"], capture_output=True, text=True, check=True).stderr
    except FileNotFoundError:
        return "classes.jsa"
    version = shown.split('"')[1]
    return f"classes-{version}.jsa"
