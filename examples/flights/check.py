"""What ``scripts/demo --check`` asserts while the demo runs and after it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pandas as pd

from examples.flights.expected import (
    expected_aircraft_duties,
    expected_aircraft_last_seen,
    expected_airport_departures,
    expected_carrier_delay_history,
    expected_carrier_delays,
    same_value,
)
from examples.flights.supervisor import Supervisor, wait_until

_EXAMPLES = (
    "/v1/stores/carrier_delays/keys/UA",
    "/v1/stores/aircraft_last_seen/keys/N14228?max_time_lag_ms=1000",
    "/v1/stores/airport_departures/keys/JFK/windows?reverse=true&limit=3",
    "/v1/stores/aircraft_duties/keys/N14228/sessions?reverse=true&limit=3",
    "/v1/stores/carrier_delay_history/keys/UA?as_of=2013-01-15T00:00:00Z",
)
WATCHED_CARRIER = "UA"
MIN_BATCHES = 20
_IN_SMALL_BATCHES = ("carrier_delays", "aircraft_last_seen", "airport_departures")
_READS_PER_SECOND = 100
_KEYS_AT_ONCE = 500
_DEADLINE_S = 600
"""Of each step, so that only a step that stands still fails: on a busy machine a first batch takes a minute."""
_ENTRIES_A_PAGE = 20_000
_TIMED = {
    "airport_departures": ("windows", "start_ms"),
    "aircraft_duties": ("sessions", "start_ms"),
    "carrier_delay_history": ("versions", "valid_from_ms"),
}
"""By store: the name of a key's entries, and of their time."""


def examples(supervisor: Supervisor) -> list[str]:
    """Reads that the demo suggests to its user."""
    return [path for path in _EXAMPLES if path.split("/")[3] in supervisor.stores]


@dataclass(frozen=True)
class Finding:
    """One line of the table: what was checked, what was found, and whether it is correct."""

    what: str
    found: str
    passed: bool


@dataclass
class SteadyReader:
    """Reads one key through the router a hundred times a second, and records failures."""

    url: str
    reads: int = 0
    failures: list[str] = field(default_factory=list)
    longest_ms: float = 0.0
    roles: set[str] = field(default_factory=set)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to read."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        with httpx.Client(timeout=5) as client:
            while not self._stopping.is_set():
                begun = time.monotonic()
                try:
                    answer = client.get(self.url)
                    if answer.status_code != 200:
                        self.failures.append(f"{answer.status_code}: {answer.text}")
                    else:
                        self.roles.add(answer.headers["forebay-role"])
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                self.reads += 1
                self.longest_ms = max(self.longest_ms, (time.monotonic() - begun) * 1000)
                due = max(due + 1 / _READS_PER_SECOND, begun)
                self._stopping.wait(max(0.0, due - time.monotonic()))


@dataclass
class LagWatcher:
    """Watches for answers that are behind, and for a refusal of one that must not be."""

    router: str
    behind: int = 0
    max_records_behind: int = 0
    refusals: int = 0
    refused: dict[str, Any] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        url = f"{self.router}/v1/stores/aircraft_last_seen/keys/N14228"
        with httpx.Client(timeout=5) as client:
            while not self._stopping.is_set():
                try:
                    record_lag = int(client.get(url).headers.get("forebay-record-lag", 0))
                    if record_lag:
                        self.behind += 1
                        self.max_records_behind = max(self.max_records_behind, record_lag)
                        strict = client.get(url, params={"max_record_lag": 0})
                        if strict.status_code == 412:
                            self.refusals += 1
                            self.refused = strict.json()
                except httpx.TransportError:
                    pass
                self._stopping.wait(0.02)


def run_check(supervisor: Supervisor, flights: pd.DataFrame, total_slices: int) -> list[Finding]:
    """Watch a demo at full speed from start to end, kill a worker on the way, compare every key."""
    router = supervisor.router
    key_url = f"{router}/v1/stores/carrier_delays/keys/{WATCHED_CARRIER}"
    reader, watcher = SteadyReader(key_url), LagWatcher(router)
    wait_until(lambda: _answers(supervisor, key_url), f"the first answer for {WATCHED_CARRIER}", _DEADLINE_S)
    reader.start()
    watcher.start()
    try:
        wait_until(lambda: _alive(supervisor) and _batches(supervisor) >= 3, "the first batches", _DEADLINE_S)
        killed = kill_active(supervisor)
        if supervisor.tapped:
            for store in supervisor.stores:
                supervisor.kill_tap(store)
                supervisor.start_tap(store)
        batches_at_kill, reads_at_kill = _batches(supervisor), reader.reads
        wait_until(
            lambda: reader.reads >= reads_at_kill + 5 * _READS_PER_SECOND,
            "5 s of reads after the kill",
            _DEADLINE_S,
        )
        supervisor.start_worker(killed)
        wait_until(
            lambda: _alive(supervisor) and supervisor.has_read(len(flights)),
            "the end of the replay",
            _DEADLINE_S,
        )
        wait_until(_duties_written(supervisor, flights), "the last duties", _DEADLINE_S)
        wait_until(lambda: _caught_up(supervisor), "record lag 0 everywhere", _DEADLINE_S)
    finally:
        reader.stop()
        watcher.stop()
    min_batches = min(MIN_BATCHES, total_slices)
    findings = [
        Finding(
            f"{query}: micro-batches", str(supervisor.batches[query]), supervisor.batches[query] >= min_batches
        )
        for query in _IN_SMALL_BATCHES
    ]
    findings += [
        Finding(
            "answers that said they were behind",
            f"{watcher.behind}, by up to {watcher.max_records_behind} records",
            watcher.behind > 0,
        ),
        Finding(
            "refusals of max_record_lag=0 while behind",
            f"{watcher.refusals} × 412 {watcher.refused.get('type', '')}",
            watcher.refusals > 0,
        ),
        Finding("record lag in the end", "0 on every replica", True),
        Finding(
            f"kill -9 of the active for {WATCHED_CARRIER} at {_READS_PER_SECOND} reads/s",
            f"{killed} after {batches_at_kill} of {total_slices} batches",
            batches_at_kill < total_slices,
        ),
        Finding(
            "reads through the kill",
            f"{reader.reads}, {len(reader.failures)} failed, longest {reader.longest_ms:.0f} ms, "
            f"by {' and '.join(sorted(reader.roles))}" + (f": {reader.failures[0]}" if reader.failures else ""),
            not reader.failures and reader.reads > 0,
        ),
    ]
    statuses = [supervisor.http.get(path).status_code for path in examples(supervisor)]
    findings.append(Finding("what the demo tells to try", f"{statuses}", set(statuses) == {200}))
    return findings + compare_every_key(supervisor, flights)


def kill_active(supervisor: Supervisor) -> str:
    """Kill the worker that is active for the watched key, without warning; returns its address."""
    metadata = supervisor.http.get(f"/v1/metadata/stores/carrier_delays/keys/{WATCHED_CARRIER}").json()
    address: str = metadata["active_host"]
    process = supervisor.workers[address]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return address


def compare_every_key(supervisor: Supervisor, flights: pd.DataFrame) -> list[Finding]:
    """Read every key of every store through the router, and compare it with pandas."""
    findings, client = [], supervisor.http
    for store, expected in (
        ("carrier_delays", expected_carrier_delays(flights)),
        ("aircraft_last_seen", expected_aircraft_last_seen(flights)),
    ):
        values = _values(client, store, list(expected))
        wrong = [key for key, value in expected.items() if not same_value(values[key], value)]
        findings.append(_compared(f"{store}: keys equal to pandas", len(expected), wrong))
    for store, timed in (
        ("airport_departures", expected_airport_departures(flights)),
        ("carrier_delay_history", expected_carrier_delay_history(flights)),
        ("aircraft_duties", expected_aircraft_duties(flights, open_ones=supervisor.tapped)),
    ):
        if store not in supervisor.stores:
            continue
        if store == "aircraft_duties":
            # There are thousands of aircraft: all are read in one list.
            everyones = _of_everyone(client, store)
        else:
            everyones = {key: _all_of(client, store, key) for key in timed}
        wrong = [f"{key}, which nobody has" for key in everyones.keys() - timed.keys()]
        for key, entries in timed.items():
            found = everyones.get(key, {})
            wrong += [
                f"{key}@{time_ms}"
                for time_ms, value in entries.items()
                if time_ms not in found or not same_value(found[time_ms], value)
            ]
            # The last duties may end at the very watermark, where either is right.
            latest = max(entries)
            wrong += [f"{key}@{time_ms}, too much" for time_ms in found.keys() - entries if time_ms < latest]
        total = sum(len(entries) for entries in timed.values())
        findings.append(_compared(f"{store}: {_TIMED[store][0]} equal to pandas", total, wrong))
    return findings


def _compared(what: str, total: int, wrong: list[str]) -> Finding:
    shown = f" ({', '.join(wrong[:3])}…)" if wrong else ""
    return Finding(what, f"{total - len(wrong)} of {total}{shown}", not wrong)


def _values(client: httpx.Client, store: str, keys: list[str]) -> dict[str, Any]:
    """The value of each key, an empty one if there is none."""
    found: dict[str, Any] = {}
    for at in range(0, len(keys), _KEYS_AT_ONCE):
        answer = client.post(f"/v1/stores/{store}/batch-get", json={"keys": keys[at : at + _KEYS_AT_ONCE]})
        answer.raise_for_status()
        found.update({result["key"]: result.get("value", {}) for result in answer.json()["results"]})
    return found


def _all_of(client: httpx.Client, store: str, key: str) -> dict[int, dict[str, Any]]:
    """Every window, session or version of a key, by its time."""
    entries, time_name = _TIMED[store]
    listed = _listed(client, f"/v1/stores/{store}/keys/{key}/{entries}", entries)
    return {entry[time_name]: entry["value"] for entry in listed}


def _of_everyone(client: httpx.Client, store: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Every window or session of every key, by the key and its time."""
    entries, time_name = _TIMED[store]
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for entry in _listed(client, f"/v1/stores/{store}/{entries}", entries):
        found[entry["key"]][entry[time_name]] = entry["value"]
    return found


def _listed(client: httpx.Client, path: str, entries: str) -> Iterator[dict[str, Any]]:
    """All entries of a list, page by page."""
    cursor: str | None = None
    while True:
        parameters = {"limit": str(_ENTRIES_A_PAGE), **({"cursor": cursor} if cursor else {})}
        page = client.get(path, params=parameters)
        page.raise_for_status()
        document = page.json()
        yield from document[entries]
        cursor = document["next"]
        if cursor is None:
            return


def _duties_written(supervisor: Supervisor, flights: pd.DataFrame) -> Callable[[], bool]:
    """Whether the very last duty is there: it arrives with the batch after the last flights."""
    duties = expected_aircraft_duties(flights, open_ones=supervisor.tapped)
    last_start, tail = max((max(by_start), tail) for tail, by_start in duties.items())

    def written() -> bool:
        try:
            return last_start in _all_of(supervisor.http, "aircraft_duties", tail)
        except httpx.HTTPStatusError:
            # Until its first batch, nobody can tell which duties there are.
            return False

    return written


def _answers(supervisor: Supervisor, url: str) -> bool:
    supervisor.check_alive()
    return supervisor.http.get(url).status_code == 200


def _alive(supervisor: Supervisor) -> bool:
    supervisor.check_alive()
    return True


def _batches(supervisor: Supervisor) -> int:
    return min(supervisor.batches[query] for query in _IN_SMALL_BATCHES)


def _caught_up(supervisor: Supervisor) -> bool:
    lags = supervisor.http.get("/v1/lags").json()["lags"]
    return len(lags) >= 2 * supervisor.partitions and all(row["record_lag"] == 0 for row in lags)
