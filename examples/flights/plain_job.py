"""The flights job as it is without forebay: plain Spark, whose results go nowhere.

What it keeps in its checkpoints is what ``forebay spark follow`` serves. Prints a JSON line for every micro-batch:
query, batch, rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.flights.queries import (
    FILES_IN_BULK,
    aircraft_duties,
    airport_departures,
    carrier_delays,
    latest_flights,
    read_flights,
)
from examples.flights.session import print_batches, start_spark


def main() -> None:
    """Run the queries until the job is stopped or one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="directory of the replayed files")
    parser.add_argument("--checkpoints", type=Path, required=True, help="directory of the queries' checkpoints")
    arguments = parser.parse_args()
    spark = start_spark()
    print_batches(spark)
    flights = read_flights(spark, arguments.source)
    in_bulk = read_flights(spark, arguments.source, FILES_IN_BULK)
    for name, query, mode in (
        ("carrier_delays", carrier_delays(flights), "update"),
        ("aircraft_last_seen", latest_flights(flights), "update"),
        ("airport_departures", airport_departures(flights), "update"),
        ("aircraft_duties", aircraft_duties(in_bulk), "append"),
    ):
        writer = query.writeStream.queryName(name).outputMode(mode).format("noop")
        writer.option("checkpointLocation", str(arguments.checkpoints / name)).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
