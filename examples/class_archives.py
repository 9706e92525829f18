"""Makes archives of the classes of a Kafka broker and of a Spark driver: ``python -m examples.class_archives``.

Half of what such a JVM computes until it is ready is reading its classes. With an archive it maps them. Java calls
this class data sharing. An archive is made once for each Java and each set of libraries.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from examples.broker import Broker
from examples.jvm import java, kafka_classes, spark_classes, spark_options
from forebay.topology_file import load_topology
from forebay_changelog.kafka.changelog import KafkaChangelog

_TOPOLOGY = Path(__file__).parent / "flights" / "topology.toml"
_ARCHIVING_DEADLINE_S = 300.0


def main() -> None:
    """Make those that are missing."""
    if shutil.which(java()) is None:
        return
    if shutil.which("mvn") is not None:
        _make(kafka_classes(), _run_broker)
    _make(spark_classes(), _run_spark)


def _make(archive: Path, run: Callable[[Path, str], None]) -> None:
    """Have a JVM write an archive of the classes that it has loaded when it ends."""
    if archive.exists():
        return
    print("Making an archive of classes, with which JVMs start faster…", file=sys.stderr)
    with tempfile.TemporaryDirectory() as directory:
        draft = Path(directory) / "classes.jsa"
        run(Path(directory), f"-XX:ArchiveClassesAtExit={draft}")
        # Several may do so at once: it takes its place whole.
        near = archive.with_name(f".{archive.name}.{os.getpid()}")
        shutil.move(draft, near)
        near.replace(archive)


def _run_broker(directory: Path, option: str) -> None:
    """Until it has the demo's topics, which takes most of a broker."""
    broker = Broker(directory / "broker", java_options=[option])
    broker.start()
    changelog = KafkaChangelog(broker.url)
    for spec in load_topology(_TOPOLOGY).stores.values():
        changelog.ensure(spec)
    broker.stop()


def _run_spark(directory: Path, option: str) -> None:
    """The demo's queries, of a few flights: they have each kind of state."""
    from examples.flights.flights import load_flights, replay
    from examples.flights.pipeline import writers
    from examples.flights.session import end_jvm, start_spark
    from forebay.spark import Sink

    os.environ["JDK_JAVA_OPTIONS"] = spark_options()
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options {option} pyspark-shell"
    source = directory / "flights"
    replay(load_flights().head(1_000), source, days_per_slice=1, pause_s=0, on_slice=lambda _: None)
    sink = Sink(_TOPOLOGY, changelog=f"sqlite://{directory}/log")
    spark = start_spark()
    for writer in writers(sink, spark, str(source)):
        checkpoint = str(directory / "checkpoints" / writer.store)
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    end_jvm(_ARCHIVING_DEADLINE_S)


if __name__ == "__main__":
    main()
