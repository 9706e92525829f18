import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ForebayError
from forebay.task_ids import TopicPartition
from forebay_worker.state.checkpoint_file import CheckpointFile, CheckpointFileError

ORDERS = TopicPartition("app-orders-changelog", 3)
CARRIERS = TopicPartition("app-carriers-changelog", 3)

topic_partitions = st.builds(
    TopicPartition,
    st.text("abcXYZ019._-", min_size=1, max_size=20),
    st.integers(0, 999_999),
)


def checkpoint_with(path: Path, text: str | bytes) -> CheckpointFile:
    file = CheckpointFile.of(path)
    file.path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_it_is_written_as_kafka_streams_writes_it(tmp_path: Path) -> None:
    CheckpointFile.of(tmp_path).write({ORDERS: 42, CARRIERS: 0})

    assert (tmp_path / ".checkpoint").read_text() == (
        "0\n2\napp-orders-changelog 3 42\napp-carriers-changelog 3 0\n"
    )


def test_kafka_streams_file_is_read(tmp_path: Path) -> None:
    """Kafka Streams' mark for an unknown offset is read as none."""
    file = checkpoint_with(tmp_path, "0\n3\napp-orders-changelog 3 42\nother 0 -4\napp-carriers-changelog 3 7\n")

    assert file.read() == {ORDERS: 42, CARRIERS: 7}


def test_without_a_file_no_offset_is_known(tmp_path: Path) -> None:
    assert CheckpointFile.of(tmp_path).read() == {}


@given(st.dictionaries(topic_partitions, st.integers(0, 2**53)))
def test_what_is_written_is_read(offsets: dict[TopicPartition, int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = CheckpointFile.of(Path(directory))
        file.write(offsets)
        assert file.read() == offsets


@given(st.data())
def test_truncated_file_is_malformed(data: st.DataObject) -> None:
    """It never yields a wrong offset."""
    offsets = data.draw(st.dictionaries(topic_partitions, st.integers(0, 2**53), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as directory:
        file = CheckpointFile.of(Path(directory))
        file.write(offsets)
        whole = file.path.read_bytes()
        file.path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        with pytest.raises(CheckpointFileError):
            file.read()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("1\n0\n", 1),
        ("0\n", 2),
        ("0\nmany\n", 2),
        ("0\n-1\n", 2),
        ("0\n2\nt 0 5\n", 2),
        ("0\n0\nt 0 5\n", 2),
        ("0\n1\nt 0\n", 3),
        ("0\n1\nt 0 5 6\n", 3),
        ("0\n1\nt zero 5\n", 3),
        ("0\n1\nt 0 -1\n", 3),
        ("0\n1\nt 0 5.5\n", 3),
        ("0\n1\nt 0 ٥\n", 3),
        ("0\n1\nt 0 1" + "0" * 5000 + "\n", 3),
        ("0\n2\nt 0 5\nt 0 6\n", 4),
        ("0\n1\nt 0 5\n\n", 4),
        ("0\n1\nt 0 5", 3),
        (b"0\n1\n\xff\xfe 0 5\n", 3),
        (b"\x00" * 64, 1),
    ],
)
def test_a_malformed_file_is_an_error_that_names_file_and_line(
    tmp_path: Path, text: str | bytes, line: int
) -> None:
    file = checkpoint_with(tmp_path, text)

    with pytest.raises(CheckpointFileError) as raised:
        file.read()

    assert isinstance(raised.value, ForebayError)
    assert str(raised.value).startswith(f"{file.path}, line {line}: ")
    assert "unknown" in str(raised.value)
    assert "rebuilt" in str(raised.value)


def test_one_line_is_removed_and_the_others_stay(tmp_path: Path) -> None:
    file = CheckpointFile.of(tmp_path)
    file.write({ORDERS: 42, CARRIERS: 7})

    file.remove(ORDERS)
    file.remove(ORDERS)

    assert file.read() == {CARRIERS: 7}


def test_with_its_last_line_the_file_goes(tmp_path: Path) -> None:
    file = CheckpointFile.of(tmp_path)
    file.write({ORDERS: 42})

    file.remove(ORDERS)

    assert not file.path.exists()


def test_one_line_is_added_or_replaced(tmp_path: Path) -> None:
    file = CheckpointFile.of(tmp_path)
    file.add(ORDERS, 42)
    file.add(CARRIERS, 7)
    file.add(ORDERS, 43)

    assert file.read() == {ORDERS: 43, CARRIERS: 7}


@pytest.mark.parametrize("change", ["remove", "add"])
def test_a_malformed_file_is_not_touched(tmp_path: Path, change: str) -> None:
    file = checkpoint_with(tmp_path, "0\n9\n")

    with pytest.raises(CheckpointFileError):
        file.remove(ORDERS) if change == "remove" else file.add(ORDERS, 1)

    assert file.path.read_text() == "0\n9\n"


def test_write_is_durable_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that a killed process left is never read."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(descriptor: int) -> None:
        events.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def recording_replace(source: Path, target: Path) -> None:
        events.append(f"replace {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    file = CheckpointFile.of(tmp_path)
    (tmp_path / ".checkpoint.tmp").write_text("a draft that a killed process left, longer than the new one" * 9)

    file.add(ORDERS, 42)
    file.remove(ORDERS)

    assert events == ["fsync .checkpoint.tmp", "replace .checkpoint", *[f"fsync {tmp_path.name}"] * 2]
