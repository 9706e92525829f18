import os
import resource
from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay.reloaded_file import ReloadedFile


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def write(path: Path, text: str) -> None:
    """Replace a file as a careful operator does, so that it is never half there."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_a_change_is_seen_after_a_second_and_not_before(path):
    clock = Clock()
    number = ReloadedFile(path, int, clock)
    write(path, "2")
    clock.now_ms = 999
    assert number() == 1
    clock.now_ms = 1000
    assert number() == 2


def test_a_file_that_stays_is_not_parsed_again(path):
    clock, texts = Clock(), []
    said = ReloadedFile(path, texts.append, clock)
    for clock.now_ms in range(0, 10_000, 500):
        said()
    assert texts == ["1"]


def test_a_bad_change_is_logged_once_and_changes_nothing(path, caplog):
    clock = Clock()
    number = ReloadedFile(path, int, clock)
    write(path, "two")
    for clock.now_ms in (1000, 2000, 3000):
        assert number() == 1
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    write(path, "3")
    clock.now_ms = 4000
    assert number() == 3


def test_a_file_that_is_gone_changes_nothing_until_it_is_back(path, caplog):
    clock = Clock()
    number = ReloadedFile(path, int, clock)
    path.unlink()
    for clock.now_ms in (1000, 2000):
        assert number() == 1
    assert len(caplog.records) == 1
    write(path, "2")
    clock.now_ms = 3000
    assert number() == 2


def test_a_change_that_could_not_be_read_is_read_once_it_can(path, caplog):
    clock = Clock()
    number = ReloadedFile(path, int, clock)
    write(path, "2")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # As in a process with too many connections.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for clock.now_ms in (1000, 2000):
            assert number() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Too many open files" in caplog.text
    clock.now_ms = 3000
    assert number() == 2


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path):
    # As Kubernetes replaces what it mounts.
    for name in ("1", "2"):
        (tmp_path / name).write_text(name)
    link, clock = tmp_path / "link", Clock()
    link.symlink_to("1")
    number = ReloadedFile(link, int, clock)
    (tmp_path / "fresh").symlink_to("2")
    os.replace(tmp_path / "fresh", link)
    clock.now_ms = 1000
    assert number() == 2


@pytest.mark.parametrize("content", [None, b"one", b"\xff"])
def test_a_file_that_cannot_be_used_to_begin_with_is_named(tmp_path, content):
    path = tmp_path / "number"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=str(path)):
        ReloadedFile(path, int)


def test_a_pipe_in_its_place_hangs_nothing(path, caplog):
    """Nor does a directory, a device or a file without end; the previous contents stay."""
    clock = Clock()
    number = ReloadedFile(path, int, clock)
    for replace in (os.mkfifo, os.mkdir, lambda place: os.symlink("/dev/zero", place), grow):
        path.unlink() if path.is_file() or path.is_fifo() or path.is_symlink() else path.rmdir()
        replace(path)
        clock.now_ms += 1_000
        assert number() == 1
    assert caplog.text.count("not a regular file") == 3
    assert "larger than" in caplog.text


@pytest.mark.parametrize("also", [False, True])
def test_a_pipe_to_begin_with_is_refused(tmp_path, path, also):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SettingError, match="pipe cannot be used: it is not a regular file"):
        ReloadedFile(path if also else pipe, int, Clock(), (pipe,) if also else ())


def both(first: str, second: str) -> str:
    return f"{first} {second}"


def test_files_are_opened_once_and_checked_as_parsed(path, tmp_path):
    """A change of either of two files reloads both."""
    second, clock = tmp_path / "second", Clock()
    write(second, "2")
    pair = ReloadedFile(path, both, clock, also=(second,))
    assert pair() == "1 2"
    write(second, "3")
    clock.now_ms = 1000
    assert pair() == "1 3"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o604, 1), (0o602, 1), (0o666, 1)])
def test_exposed_secret_is_warned_of_at_each_reload(path, caplog, mode, warned):
    """A file with a secret should be closed to group and others."""
    clock = Clock()
    path.chmod(mode)
    number = ReloadedFile(path, int, clock, secrets=(path,))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    assert not warned or (str(path) in caplog.text and f"{mode:04o}" in caplog.text and "chmod 600" in caplog.text)
    caplog.clear()
    for clock.now_ms in (1000, 2000):
        number()
    assert not caplog.records
    path.write_text("2")
    for clock.now_ms in (3000, 4000):
        assert number() == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    caplog.clear()
    path.chmod(0o600)
    clock.now_ms = 5000
    number()
    assert not caplog.records


def test_what_is_no_secret_may_be_read_by_all(path, caplog):
    path.chmod(0o644)
    ReloadedFile(path, int, Clock())
    assert not caplog.records


def grow(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(2 << 20)
