import os
from pathlib import Path

import pytest

from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.errors import CheckpointError, CheckpointUnreachable
from forebay_tap.spark_checkpoint.files import ArrowFiles, CheckpointFiles, FileStatus, open_files


def arrow_files(directory: Path) -> CheckpointFiles:
    from pyarrow.fs import LocalFileSystem

    return ArrowFiles(LocalFileSystem(), str(directory), f"file://{directory}")


@pytest.fixture(params=["path", "url", "arrow"])
def files(request, tmp_path) -> CheckpointFiles:
    if request.param == "arrow":
        return arrow_files(tmp_path)
    return open_files(str(tmp_path) if request.param == "path" else tmp_path.as_uri())


def test_files_are_listed_read_and_found(files, tmp_path):
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits/1").write_bytes(b"two")
    (tmp_path / "commits/0").write_bytes(b"")
    os.utime(tmp_path / "commits/1", ns=(0, 5_000_000))
    assert files.list("commits") == ["0", "1"]
    assert files.list("") == ["commits"]
    assert files.list("offsets") == []
    assert files.read("commits/1") == b"two"
    assert files.exists("commits/1")
    assert not files.exists("commits/2")
    assert files.stat("commits/1") == FileStatus(3, 5)


def test_missing_files_differ_from_unreadable_ones(files, tmp_path):
    for call in (files.read, files.stat):
        with pytest.raises(FileNotFoundError):
            call("commits/1")
    (tmp_path / "commits").mkdir()
    with pytest.raises(CheckpointUnreachable, match="this user may read it"):
        files.read("commits")


def test_any_file_system_of_pyarrow_serves_the_same_checkpoint(spark_4_0):
    path = spark_4_0.path("aggregation-format2")
    of_arrow, of_path = Checkpoint(arrow_files(path)), Checkpoint.open(str(path))
    assert of_arrow.id == of_path.id
    assert repr(list(of_arrow.snapshot(0, 0, 5))) == repr(list(of_path.snapshot(0, 0, 5)))


def test_unsupported_url_is_refused_without_credentials():
    with pytest.raises(CheckpointError, match="gopher://here/checkpoint is no URL of a file system") as refused:
        open_files("gopher://user:secret@here/checkpoint?token=secret")
    assert "secret" not in str(refused.value)
