import threading
from pathlib import Path

import pytest

from forebay.changelog.sqlite.changelog import SqliteChangelog
from tests.service.tasks.held_tasks import SlowOpener, make_changelog


@pytest.fixture
def changelog(tmp_path: Path) -> SqliteChangelog:
    return make_changelog(tmp_path)


@pytest.fixture(autouse=True)
def none_let(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowOpener, "let", threading.Semaphore(0))
