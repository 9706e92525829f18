"""The stores' expected final contents, computed from the same file with plain pandas."""

from __future__ import annotations

from typing import Any

import pandas as pd


def expected_carrier_delays(flights: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Value by carrier."""
    expected = {}
    for carrier, group in flights.groupby("carrier"):
        delays = group["dep_delay"].dropna()
        expected[str(carrier)] = {
            "flights": len(group),
            "departed": int(group["dep_time"].notna().sum()),
            "cancelled": int(group["dep_time"].isna().sum()),
            "dep_delay_min_sum": float(delays.sum()),
            "dep_delay_min_mean": float(delays.mean()),
            "dep_delay_min_max": float(delays.max()),
            "distance_mi_sum": int(group["distance"].sum()),
        }
    return expected


def expected_aircraft_last_seen(flights: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Value by tail number; the flights are in the order of the replay."""
    last = flights[flights["tailnum"].notna()].groupby("tailnum").tail(1)
    return {
        row.tailnum: {
            "time_hour": row.time_hour.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "origin": row.origin,
            "dest": row.dest,
            "carrier": row.carrier,
            "flight": row.flight,
        }
        for row in last.itertuples(index=False)
    }


def expected_airport_departures(flights: pd.DataFrame) -> dict[str, dict[int, dict[str, Any]]]:
    """Value by origin and window start in epoch ms; no mean where no flight departed."""
    hours = flights.groupby(["origin", "time_hour"])["dep_delay"].agg(["size", "mean"])
    expected: dict[str, dict[int, dict[str, Any]]] = {}
    for (origin, hour), row in hours.iterrows():
        mean = None if pd.isna(row["mean"]) else float(row["mean"])
        start_ms = int(hour.timestamp() * 1000)
        expected.setdefault(origin, {})[start_ms] = {"flights": int(row["size"]), "dep_delay_min_mean": mean}
    return expected


def expected_carrier_delay_history(flights: pd.DataFrame) -> dict[str, dict[int, dict[str, Any]]]:
    """Value by carrier and day, the day as its beginning in epoch ms."""
    days = flights.assign(day=flights["time_hour"].dt.floor("D"))
    expected: dict[str, dict[int, dict[str, Any]]] = {}
    for (carrier, day), group in days.groupby(["carrier", "day"]):
        delays = group["dep_delay"].dropna()
        value = {
            "day": day.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "flights": len(group),
            "dep_delay_min_mean": float(delays.mean()) if len(delays) else None,
        }
        expected.setdefault(str(carrier), {})[int(day.timestamp() * 1000)] = value
    return expected


def expected_aircraft_duties(flights: pd.DataFrame, *, open_ones: bool) -> dict[str, dict[int, dict[str, Any]]]:
    """Value by tail number and start in epoch ms, without ``open_ones`` of the duties that the stream's end has
    left behind.

    Spark writes a session once the watermark, 2 hours behind the newest flight, has passed its end. Its state has
    those that are open, too.
    """
    aircraft = flights[flights["tailnum"].notna()].sort_values(["tailnum", "time_hour"], kind="stable")
    begins = (aircraft["tailnum"] != aircraft["tailnum"].shift()) | (
        aircraft["time_hour"].diff() > pd.Timedelta(hours=6)
    )
    duties = aircraft.groupby(begins.cumsum()).agg(
        tailnum=("tailnum", "first"),
        start=("time_hour", "first"),
        last=("time_hour", "last"),
        flights=("carrier", "size"),
        distance_mi_sum=("distance", "sum"),
    )
    watermark = flights["time_hour"].max() - pd.Timedelta(hours=2)
    if not open_ones:
        duties = duties[duties["last"] + pd.Timedelta(hours=6) < watermark]
    expected: dict[str, dict[int, dict[str, Any]]] = {}
    for row in duties.itertuples(index=False):
        value = {"flights": int(row.flights), "distance_mi_sum": int(row.distance_mi_sum)}
        expected.setdefault(row.tailnum, {})[int(row.start.timestamp() * 1000)] = value
    return expected


def same_value(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Equal member by member, means to 1e-9 relative."""
    return found.keys() == wanted.keys() and all(
        _same(found[name], wanted[name], name.endswith("_mean")) for name in wanted
    )


def _same(found: Any, wanted: Any, is_mean: bool) -> bool:
    if is_mean and found is not None and wanted is not None:
        return bool(abs(found - wanted) <= 1e-9 * abs(wanted))
    return bool(found == wanted)
