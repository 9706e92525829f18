"""What the three stores must hold in the end, worked out from the same file by plain pandas."""

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


def same_value(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Equal member by member, means to 1e-9 relative."""
    return found.keys() == wanted.keys() and all(
        _same(found[name], wanted[name], name.endswith("_mean")) for name in wanted
    )


def _same(found: Any, wanted: Any, is_mean: bool) -> bool:
    if is_mean and found is not None and wanted is not None:
        return bool(abs(found - wanted) <= 1e-9 * abs(wanted))
    return bool(found == wanted)
