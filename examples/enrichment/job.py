"""A stream of departures, each with what is known of its carrier's delays by now.

python -m examples.enrichment.job --router unix:/run/forebay/router.sock
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame

from examples.enrichment.enrich import ADDED_COLUMNS, enrich
from examples.flights.session import start_spark

_SCHEMA = "flight string, carrier string"
_DEPARTURES = Path(__file__).with_name("departures")
_MAX_TIME_LAG_MS = 10_000


def with_delays(departures: DataFrame, router: str) -> DataFrame:
    """Departures with the delays of their carriers; any replica may answer, preferably the nearest."""
    added = enrich(
        router, "carrier_delays", "carrier", max_time_lag_ms=_MAX_TIME_LAG_MS, prefer="any", wait_ms=2_000
    )
    return departures.mapInArrow(added, f"{_SCHEMA}, {ADDED_COLUMNS}")


def main() -> None:
    """Print all departures that are there, those of each file in a micro-batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True, help="URL of the router, such as unix:/run/forebay/router.sock")
    parser.add_argument("--departures", default=_DEPARTURES, help="directory of files with a JSON object a line")
    parser.add_argument("--master", default="local[2]", help="Spark's master, such as local-cluster[2,1,1024]")
    given = parser.parse_args()
    spark = start_spark(master=given.master)
    departures = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(given.departures))
    query = (
        with_delays(departures, given.router)
        .writeStream.trigger(availableNow=True)
        .foreachBatch(lambda batch, _: print("\n".join(batch.toJSON().collect()), flush=True))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
