"""Files that the kernel reports as written to."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forebay.file_events import FileEvents

MAX_EVENTS = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


@pytest.fixture
def events(tmp_path: Path) -> Iterator[FileEvents]:
    with closing(FileEvents()) as events:
        events.watch(str(tmp_path))
        yield events


def test_changed_file_is_named_once(events, tmp_path):
    """It was written to, created, renamed or deleted."""
    path = tmp_path / "file"
    assert events.changed() == set()
    path.write_text("a")
    assert events.changed() == {str(path)}
    with path.open("a") as file:
        file.write("b")
    assert events.changed() == {str(path)}
    path.rename(tmp_path / "other")
    assert events.changed() == {str(path), str(tmp_path / "other")}
    (tmp_path / "other").unlink()
    assert events.changed() == {str(tmp_path / "other")}
    assert events.changed() == set()


def test_to_read_a_file_changes_nothing(events, tmp_path):
    (tmp_path / "file").write_text("a")
    events.changed()
    (tmp_path / "file").read_text()
    assert events.changed() == set()


def test_where_events_were_dropped_any_file_may_have_changed(events, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    # The same event twice in a row is queued once.
    with one.open("w") as a, other.open("w") as b:
        for _ in range(MAX_EVENTS // 2 + 1):
            for file in (a, b):
                file.write(".")
                file.flush()
    assert events.changed() is None
    one.write_text("a")
    assert events.changed() == {str(one)}


@pytest.mark.parametrize("gone", ["renamed", "deleted"])
def test_once_a_directory_is_gone_any_file_may_have_changed(events, tmp_path, gone):
    directory = tmp_path / "directory"
    directory.mkdir()
    events.watch(str(directory))
    events.changed()
    if gone == "renamed":
        directory.rename(tmp_path / "renamed")
    else:
        directory.rmdir()
    assert events.changed() is None
    events.changed()
    (tmp_path / "file").write_text("a")
    assert events.changed() == {str(tmp_path / "file")}


def test_a_directory_that_is_not_there_cannot_be_watched(events, tmp_path):
    with pytest.raises(FileNotFoundError):
        events.watch(str(tmp_path / "nowhere"))
