"""The streaming queries of the flights demo, one for each kind of store and one more."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from forebay.spark import Sink, SinkWriter

_FILES_IN_BULK = 5
_SCHEMA = (
    "time_hour timestamp, sched_dep_time bigint, carrier string, flight bigint, tailnum string, origin string, "
    "dest string, dep_time double, dep_delay double, distance bigint"
)


def read_flights(spark: SparkSession, directory: str, files_per_batch: int = 1) -> DataFrame:
    """The replayed flights as a stream, this many files per micro-batch."""
    return spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", files_per_batch).parquet(directory)


def carrier_delays(flights: DataFrame) -> DataFrame:
    """Per carrier: how many flights, how many left, and with what delays in minutes."""
    return flights.groupBy("carrier").agg(
        F.count("*").alias("flights"),
        F.count("dep_time").alias("departed"),
        F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
        F.sum("dep_delay").alias("dep_delay_min_sum"),
        F.avg("dep_delay").alias("dep_delay_min_mean"),
        F.max("dep_delay").alias("dep_delay_min_max"),
        F.sum("distance").alias("distance_mi_sum"),
    )


def aircraft_last_seen(flights: DataFrame) -> DataFrame:
    """Per tail number: its latest flight, in the order of the replay."""
    latest = F.max(F.struct("time_hour", "sched_dep_time", "carrier", "flight", "origin", "dest"))
    return (
        # Flights without a tail number, mostly cancelled ones, have no aircraft.
        flights.where(F.col("tailnum").isNotNull())
        .groupBy("tailnum")
        .agg(latest.alias("latest"))
        .select("tailnum", *(f"latest.{name}" for name in ("time_hour", "origin", "dest", "carrier", "flight")))
    )


def airport_departures(flights: DataFrame) -> DataFrame:
    """Per origin and hour: how many flights, and their mean delay in minutes."""
    return (
        flights.withWatermark("time_hour", "2 hours")
        .groupBy(F.window("time_hour", "1 hour"), "origin")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("dep_delay_min_mean"))
    )


def carrier_delay_history(flights: DataFrame) -> DataFrame:
    """Per carrier and day (UTC): how many flights, and their mean delay in minutes; a version for each day."""
    return (
        flights.withWatermark("time_hour", "2 hours")
        .groupBy(F.window("time_hour", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("dep_delay_min_mean"))
        .select("carrier", F.col("window.start").alias("day"), "flights", "dep_delay_min_mean")
    )


def aircraft_duties(flights: DataFrame) -> DataFrame:
    """Per tail number: its duties, runs of flights with at most 6 hours from one to the next."""
    return (
        flights.where(F.col("tailnum").isNotNull())
        .withWatermark("time_hour", "2 hours")
        .groupBy(F.session_window("time_hour", "6 hours"), "tailnum")
        .agg(F.count("*").alias("flights"), F.sum("distance").alias("distance_mi_sum"))
    )


def writers(sink: Sink, spark: SparkSession, directory: str) -> list[SinkWriter]:
    """The queries, each ready to be given a checkpoint and started.

    Days and duties are over when they are written, so they can be taken in larger batches.
    """
    flights, in_bulk = read_flights(spark, directory), read_flights(spark, directory, _FILES_IN_BULK)
    return [
        sink.write(carrier_delays(flights), "carrier_delays", key="carrier"),
        sink.write(carrier_delay_history(in_bulk), "carrier_delay_history", key="carrier", order_by="day"),
        sink.write(aircraft_last_seen(flights), "aircraft_last_seen", key="tailnum"),
        sink.write(airport_departures(flights), "airport_departures", key="origin"),
        sink.write(aircraft_duties(in_bulk), "aircraft_duties", key="tailnum"),
    ]
