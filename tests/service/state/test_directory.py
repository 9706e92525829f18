"""A state directory's record of the processes that used it."""

import os
import re
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError
from forebay.task_ids import TaskId
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.fsync import write_durably

TASK = TaskId(0, 3)


def opened(path: Path) -> StateDirectory:
    return StateDirectory(path, "app")


def test_incarnation_grows_though_the_clock_was_set_back(tmp_path):
    incarnations, processes = [], set()
    for now_ms in (5_000, 1_000, 1_000, 9_000):
        directory = opened(tmp_path)
        incarnations.append(directory.next_incarnation(now_ms))
        processes.add(directory.process_id)
        directory.close()
    assert incarnations == [5_000, 5_001, 5_002, 9_000]
    assert len(processes) == 1


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"process_id": null}', '{"process_id": [], "incarnation": "x"}', "[" * 5_000]
)
def test_a_file_that_says_nothing_is_written_anew(tmp_path, content):
    directory = opened(tmp_path)
    (directory.path / "process.json").write_text(content)
    directory.close()
    directory = opened(tmp_path)
    assert directory.process_id
    assert directory.next_incarnation(7) == 7
    directory.close()


def test_incomplete_deletion_is_finished_at_a_later_start(tmp_path, monkeypatch):
    """What is left of it is not listed as a store."""
    directory = StateDirectory(tmp_path, "app")
    for store in ("deleted", "aside"):
        (directory.store_path(TASK, store) / "some").mkdir(parents=True)
    directory.set_aside(TASK, "aside")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("forebay_worker.state.directory.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            directory.delete_store(TASK, "deleted")
        with pytest.raises(KeyboardInterrupt):
            directory.discard_set_aside("aside", TASK.partition)
    assert list(directory.stores_on_disk()) == directory.set_asides() == []
    assert len(list(directory.path.rglob("some"))) == 2
    directory.delete_leftovers()
    assert list(directory.path.rglob("some")) == []
    directory.close()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    """Whoever may write the directory beforehand could have any file truncated."""
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / "app").mkdir()
    (tmp_path / "app/.lock").symlink_to(target)
    with pytest.raises(ConfigurationError):
        StateDirectory(tmp_path, "app")
    assert target.read_text() == "content"


LINKS = [
    "process.json",
    "process.tmp",
    ".relocation.json",
    ".set-aside",
    ".set-aside/0_3-s-1",
    "0_3",
    "0_3/.checkpoint",
    "0_3/rocksdb",
    "0_3/rocksdb/s",
    "0_3/rocksdb/s/rocksdict-config.json",
    ".set-aside/0_3-s-1/rocksdict-config.json",
]


@pytest.mark.parametrize("link", LINKS)
def test_a_link_out_of_the_directory_is_named_and_not_followed(tmp_path, link):
    precious = tmp_path / "precious"
    (precious / "rocksdb/s").mkdir(parents=True)
    (precious / "rocksdb/s/file").write_text("content")
    place = tmp_path / "app" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(precious)
    with pytest.raises(ConfigurationError, match=f"{re.escape(str(place))} is a symbolic link"):
        StateDirectory(tmp_path, "app")
    assert [path.name for path in precious.rglob("*")] == ["rocksdb", "s", "file"]
    place.unlink()
    opened(tmp_path).close()


@pytest.mark.parametrize("pipe", [*LINKS, ".lock", ".offsets.json"])
def test_a_pipe_in_the_directory_is_named_and_not_waited_for(tmp_path, pipe):
    place = tmp_path / "app" / pipe
    place.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(place)
    with pytest.raises(ConfigurationError, match=f"{re.escape(str(place))} is neither a file nor a directory"):
        StateDirectory(tmp_path, "app")
    place.unlink()
    opened(tmp_path).close()


def test_what_the_store_of_a_users_supplier_has_is_its_own(tmp_path):
    store = tmp_path / "app/0_3/rocksdb/s"
    store.mkdir(parents=True)
    (store / ".forebay-identity.json").write_text("{}")
    (store / "data").symlink_to(tmp_path)
    opened(tmp_path).close()


def test_no_draft_is_written_through_a_link_or_into_a_pipe(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("content")
    for prepare in (lambda draft: draft.symlink_to(precious), os.mkfifo):
        prepare(tmp_path / "process.json.tmp")
        write_durably(tmp_path / "process.json", "new")
        assert (tmp_path / "process.json").read_text() == "new"
    assert precious.read_text() == "content"


def test_the_applications_directory_is_no_link_either(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "app").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigurationError, match="app is a symbolic link"):
        StateDirectory(tmp_path, "app")
    assert list((tmp_path / "precious").iterdir()) == []


def test_the_operators_own_path_may_have_links(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    opened(tmp_path / "state").close()
    opened(tmp_path / "state").close()


def test_others_may_not_read_the_state(tmp_path):
    directory = StateDirectory(tmp_path, "app")
    directory.close()
    assert directory.path.stat().st_mode & 0o077 == 0
    assert (directory.path / ".lock").stat().st_mode & 0o077 == 0
