"""What a repository keeps, shares and removes."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.clock import epoch_ms
from forebay_worker.snapshots.repository import KEPT, Manifest, SavedFile, SnapshotRepository
from forebay_worker.tasks.restoration import CopyProgress

MANIFEST = (
    '{"format": 1, "created_epoch_ms": 1, "position": 9, "usable_until_epoch_ms": null, "log": null, "files": '
    '{"%s": {"sha256": "%s", "bytes": 1}}}'
)


class Stopped(Exception):
    pass


def pieces_of(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 4):
        yield content[start : start + 4]


class Saves:
    """Snapshots of files that the test names, a position and a millisecond apart."""

    def __init__(self, directory: Path, application_id: str = "app") -> None:
        self.root = directory / application_id / "s" / "0"
        self.repository = SnapshotRepository(f"file://{directory}", application_id)
        self.number = 0
        self.log: str | None = "a log"
        self.ahead_ms = 0

    def save(
        self, contents: dict[str, bytes], usable_until_epoch_ms: int | None = None, most: int = 1 << 30
    ) -> int:
        """Returns the bytes written; stops after the ``most`` that may be."""
        self.number += 1
        left = most

        def pause(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise Stopped

        files = {name: SavedFile(hashlib.sha256(it).hexdigest(), len(it)) for name, it in contents.items()}
        manifest = Manifest(self.number + self.ahead_ms, self.number, usable_until_epoch_ms, self.log, files)
        return self.repository.save("s", 0, manifest, lambda name: pieces_of(contents[name]), pause)

    def copy(self, target: Path, beyond: int = 0) -> dict[str, bytes] | None:
        found = self.repository.copy("s", 0, target, lambda: False, CopyProgress(self.log, beyond))
        return None if found is None else {file.name: file.read_bytes() for file in target.iterdir()}

    def contents(self) -> list[bytes]:
        return sorted(file.read_bytes() for file in (self.root / "files").iterdir())


@pytest.fixture
def saves(tmp_path: Path) -> Saves:
    return Saves(tmp_path / "kept")


def test_a_snapshot_costs_what_is_new_in_it(saves, tmp_path):
    assert saves.save({"a": b"first", "b": b"second"}) == 11
    assert saves.save({"a": b"first", "c": b"third"}) == 5
    assert saves.copy(tmp_path / "copy") == {"a": b"first", "c": b"third"}


def test_the_oldest_go_with_what_only_they_had(saves):
    for number in range(KEPT + 3):
        saves.save({"shared": b"shared", "own": b"%d" % number})
    assert len(list(saves.root.glob("*.json"))) == KEPT
    assert saves.contents() == [*(b"%d" % number for number in range(3, KEPT + 3)), b"shared"]


def test_a_save_that_is_interrupted_is_no_snapshot_and_is_made_good(saves, tmp_path):
    saves.save({"a": b"first"})
    with pytest.raises(Stopped):
        saves.save({"b": b"a longer content"}, most=5)
    assert saves.copy(tmp_path / "one") == {"a": b"first"}
    saves.save({"b": b"a longer content"})
    assert saves.copy(tmp_path / "two") == {"b": b"a longer content"}


def test_a_snapshot_that_brings_nothing_or_lacks_tombstones_is_not_taken(saves, tmp_path):
    saves.save({"a": b"1"}, usable_until_epoch_ms=int(epoch_ms()) + 1_000_000)
    assert saves.copy(tmp_path / "one", beyond=saves.number - 1) == {"a": b"1"}
    assert saves.copy(tmp_path / "two", beyond=saves.number) is None
    saves.save({"a": b"1"}, usable_until_epoch_ms=int(epoch_ms()) - 1)
    assert saves.copy(tmp_path / "three") is None
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2}',
        MANIFEST % ("../x", "0" * 64),
        MANIFEST % ("x", "../../../../victim"),
    ],
)
def test_what_is_no_manifest_is_passed_over(saves, tmp_path, text):
    saves.save({"a": b"1"})
    victim = tmp_path / "victim"
    victim.write_text("nobody's business")
    (saves.root / "000000000000002-x.json").write_text(text)
    assert saves.copy(tmp_path / "copy") == {"a": b"1"}
    saves.save({"a": b"2"})
    assert saves.copy(tmp_path / "next") == {"a": b"2"}
    assert victim.exists()


def test_applications_share_a_place(saves, tmp_path):
    saves.save({"a": b"1"})
    other = Saves(tmp_path / "kept", "other")
    assert other.copy(tmp_path / "none") is None
    other.save({"a": b"2"})
    assert saves.copy(tmp_path / "copy") == {"a": b"1"}


def test_a_snapshot_of_another_log_is_not_taken(saves, tmp_path):
    saves.save({"a": b"1"})
    saves.log = "another log"
    assert saves.copy(tmp_path / "none") is None
    assert saves.repository.newest("s", 0, "another log") is None
    assert saves.repository.newest("s", 0, None).position == 1


def test_a_clock_that_was_ahead_ends_no_snapshots(saves, tmp_path):
    saves.ahead_ms = int(epoch_ms()) + 10_000_000
    saves.save({"a": b"ahead"})
    saves.save({"a": b"ahead, too"})
    saves.ahead_ms = 0
    saves.save({"a": b"now"})
    assert saves.copy(tmp_path / "copy") == {"a": b"now"}
    saves.save({"a": b"next"})
    assert saves.copy(tmp_path / "next") == {"a": b"next"}


def test_what_a_later_version_wrote_keeps_its_files(saves):
    saves.save({"a": b"1"})
    stranger = saves.root / "files" / ("0" * 64)
    stranger.write_text("named by a manifest of another format")
    os.utime(stranger, (1, 1))
    (saves.root / "000000000000002-x.json").write_text('{"format": 2}')
    saves.save({"a": b"2"})
    assert stranger.exists()
    (saves.root / "000000000000002-x.json").unlink()
    saves.save({"a": b"3"})
    assert not stranger.exists()


def test_a_save_that_may_not_remove_the_oldest_has_saved(saves, tmp_path, monkeypatch):
    def refuse(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(saves.repository, "_delete", refuse)
    for number in range(KEPT + 2):
        saves.save({"a": b"%d" % number})
    assert saves.copy(tmp_path / "copy") == {"a": b"%d" % (KEPT + 1)}


def test_what_is_interrupted_leaves_no_empty_manifest(saves):
    with pytest.raises(Stopped):
        saves.save({"a": b"1234"}, most=4)
    assert not list(saves.root.glob("*.json"))


def test_a_file_that_is_lost_ends_the_copying_of_the_others(saves, tmp_path):
    saves.save({f"{number:03}": b"%d" % number for number in range(200)})
    lost = hashlib.sha256(b"0").hexdigest()
    (saves.root / "files" / lost).unlink()
    read: list[str] = []
    remote = saves.repository._remote
    saves.repository._remote = lambda path: read.append(path) or remote(path)
    assert saves.copy(tmp_path / "copy") is None
    assert len(read) < 100
