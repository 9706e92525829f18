"""The files of a batch do not outlast it."""

import contextlib
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def test_a_batchs_files_go_with_it_and_a_killed_processs_with_the_next(tmp_path: Path) -> None:
    from forebay_spark.sqlite_destination import RunDirectories

    directories = RunDirectories(tmp_path)
    with contextlib.suppress(OSError), directories.one("q", "a/b") as directory:
        (directory / "run").touch()
        raise OSError("disk")
    assert not directory.exists()
    left_by_killed = directory.parent / "batch-0"
    left_by_killed.mkdir()
    with directories.one("q", "other"), RunDirectories(tmp_path).one("q", "a/b") as directory:
        assert os.listdir(directory.parent) == [directory.name]


def test_runs_are_as_open_as_the_log(tmp_path: Path) -> None:
    from forebay_spark.sqlite_destination import RunDirectories

    tmp_path.chmod(0o750)
    with RunDirectories(tmp_path).one("q", "w") as directory:
        assert directory.stat().st_mode & 0o777 == 0o750
