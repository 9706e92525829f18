"""The queries of the flights demo with forebay's sink, one for each kind of store and one more."""

from __future__ import annotations

from pyspark.sql import SparkSession

from examples.flights.queries import (
    FILES_IN_BULK,
    aircraft_duties,
    aircraft_last_seen,
    airport_departures,
    carrier_delay_history,
    carrier_delays,
    read_flights,
)
from forebay.spark import Sink, SinkWriter


def writers(sink: Sink, spark: SparkSession, directory: str) -> list[SinkWriter]:
    """The queries, each ready to be given a checkpoint and started.

    Days and duties are over when they are written, so they can be taken in larger batches.
    """
    flights, in_bulk = read_flights(spark, directory), read_flights(spark, directory, FILES_IN_BULK)
    return [
        sink.write(carrier_delays(flights), "carrier_delays", key="carrier"),
        sink.write(carrier_delay_history(in_bulk), "carrier_delay_history", key="carrier", order_by="day"),
        sink.write(aircraft_last_seen(flights), "aircraft_last_seen", key="tailnum"),
        sink.write(airport_departures(flights), "airport_departures", key="origin"),
        sink.write(aircraft_duties(in_bulk), "aircraft_duties", key="tailnum"),
    ]
