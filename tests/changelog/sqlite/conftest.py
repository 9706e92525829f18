"""Consumers whose every poll looks for writes."""

import pytest


@pytest.fixture(autouse=True)
def unpaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_changelog.sqlite.consumer._PAUSE_BY_CHECK", 0)
