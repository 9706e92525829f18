from contextlib import closing
from pathlib import Path

import pytest

from forebay_changelog.sqlite import log_file as sqlite_log_file
from forebay_changelog.sqlite.log_file import WriteRefused
from tests.support.sqlite_partitions import append, logged, rows_of, state


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = str(tmp_path / "0.db")
    sqlite_log_file.create(file, "identity")
    return file


def test_a_reset_partition_is_empty_and_another_log(path: str) -> None:
    append(path, rows_of("a=1 a"), 0, query="old")
    append(path, rows_of("b=1"), 0, query="new")
    sqlite_log_file.reset(path, "another")
    assert logged(path) == []
    assert state(path) == ("another", 0, 0)
    assert append(path, rows_of("z=1"), 0, query="old") == (1, 1)


def test_creating_a_partition_again_changes_nothing(path: str) -> None:
    append(path, rows_of("a=1"))
    assert sqlite_log_file.create(path, "another") == "identity"
    assert state(path) == ("identity", 1, 0)
    assert len(logged(path)) == 1


@pytest.mark.parametrize(("by", "remedy"), [(1, "Upgrade"), (-1, "changelog reset.*fill it again")])
def test_a_log_of_another_format_is_refused_with_the_remedy(path: str, by: int, remedy: str) -> None:
    with closing(sqlite_log_file.connect(path)) as connection:
        connection.execute("UPDATE state SET format = format + ?", (by,))
    with pytest.raises(WriteRefused, match=remedy):
        append(path, rows_of("a=1"))
    assert logged(path) == []


def test_a_log_of_an_older_format_can_be_reset(path: str) -> None:
    with closing(sqlite_log_file.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE epoch; ALTER TABLE log DROP COLUMN checksum; ALTER TABLE state DROP COLUMN removed_to;"
            "UPDATE state SET format = 1"
        )
    sqlite_log_file.reset(path, "another")
    append(path, rows_of("a=1"))
    assert state(path) == ("another", 1, 0)


def test_an_executor_that_sees_the_drivers_directory_may_write(tmp_path: Path) -> None:
    (tmp_path / sqlite_log_file.DIRECTORY_ID_FILE).write_text("abc driver\n")
    sqlite_log_file.check_directory(str(tmp_path), "abc driver", "driver", "executor")


@pytest.mark.parametrize("found", [None, "", "def driver\n"])
def test_executor_with_another_directory_is_refused(tmp_path: Path, found: str | None) -> None:
    """The error names the hosts of the driver and of the executor."""
    if found is not None:
        (tmp_path / sqlite_log_file.DIRECTORY_ID_FILE).write_text(found)
    with pytest.raises(WriteRefused, match="SQLite serves one machine") as caught:
        sqlite_log_file.check_directory(str(tmp_path), "abc driver", "driver-host", "executor-host")
    for part in (str(tmp_path), "driver-host", "executor-host"):
        assert part in str(caught.value)
