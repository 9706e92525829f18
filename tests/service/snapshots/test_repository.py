"""What a repository keeps, shares and removes."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.clock import epoch_ms
from forebay_worker.snapshots.repository import KEPT, Manifest, SavedFile, SnapshotRepository
from forebay_worker.snapshots.taking import CopyProgress


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
        manifest = Manifest(self.number, self.number, usable_until_epoch_ms, files)
        return self.repository.save("s", 0, manifest, lambda name: pieces_of(contents[name]), pause)

    def copy(self, target: Path, beyond: int = 0) -> dict[str, bytes] | None:
        found = self.repository.copy("s", 0, target, lambda: False, CopyProgress(beyond))
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
        '{"format": 1, "created_epoch_ms": 1, "position": 9, "usable_until_epoch_ms": null, "files": {"../x": '
        '{"sha256": "0", "bytes": 1}}}',
    ],
)
def test_what_is_no_manifest_is_passed_over(saves, tmp_path, text):
    saves.save({"a": b"1"})
    (saves.root / "999999999999999-x.json").write_text(text)
    assert saves.copy(tmp_path / "copy") == {"a": b"1"}
    saves.save({"a": b"2"})
    assert saves.copy(tmp_path / "next") == {"a": b"2"}


def test_applications_share_a_place(saves, tmp_path):
    saves.save({"a": b"1"})
    other = Saves(tmp_path / "kept", "other")
    assert other.copy(tmp_path / "none") is None
    other.save({"a": b"2"})
    assert saves.copy(tmp_path / "copy") == {"a": b"1"}
