"""The streaming queries of the flights demo, in nothing but Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

FILES_IN_BULK = 5
"""So many files a micro-batch have those queries whose results are over when they are written."""
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


def latest_flights(flights: DataFrame) -> DataFrame:
    """Per tail number: its latest flight as a struct, in the order of the replay."""
    latest = F.max(F.struct("time_hour", "sched_dep_time", "carrier", "flight", "origin", "dest"))
    # Flights without a tail number, mostly cancelled ones, have no aircraft.
    return flights.where(F.col("tailnum").isNotNull()).groupBy("tailnum").agg(latest.alias("latest"))


def aircraft_last_seen(flights: DataFrame) -> DataFrame:
    """Per tail number: its latest flight."""
    names = ("time_hour", "origin", "dest", "carrier", "flight")
    return latest_flights(flights).select("tailnum", *(f"latest.{name}" for name in names))


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
