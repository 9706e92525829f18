import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.support.held_tasks import SlowOpener, make_changelog


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    return make_changelog(tmp_path)


@pytest.fixture(autouse=True)
def none_let(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowOpener, "let", threading.Semaphore(0))


@pytest.fixture(autouse=True)
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every poll of a SQLite log checks whether it was written to."""
    monkeypatch.setattr("forebay_changelog.sqlite.consumer._PAUSE_BY_CHECK", 0)


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets both clocks go on by some milliseconds."""
    passed_ms = 0.0
    wall, clock = time.time, time.clock_gettime
    monkeypatch.setattr(time, "time", lambda: wall() + passed_ms / 1000)
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + passed_ms / 1000)

    def pass_time(ms: float) -> None:
        nonlocal passed_ms
        passed_ms += ms

    return pass_time
