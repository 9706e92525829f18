"""The Spark job of the flights demo: streams the replayed files into the changelog until it is stopped.

Prints a JSON line for every micro-batch: query, batch, rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.flights.pipeline import writers
from examples.flights.session import print_batches, start_spark
from forebay.spark import Sink


def make_parser() -> argparse.ArgumentParser:
    """The job's command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="directory of the replayed files")
    parser.add_argument("--changelog", required=True, help="changelog URL")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory of the queries' checkpoints")
    parser.add_argument("--jars", default="", help="Spark's Kafka connector, as spark.jars or a pattern")
    return parser


def main() -> None:
    """Run the queries until the job is stopped or one of them fails."""
    arguments = make_parser().parse_args()
    spark = start_spark(arguments.jars)
    print_batches(spark)
    sink = Sink(Path(__file__).with_name("topology.toml"), changelog=arguments.changelog)
    for writer in writers(sink, spark, arguments.source):
        checkpoint = arguments.checkpoints / writer.store
        writer.option("checkpointLocation", str(checkpoint)).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
