import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forebay.errors import ConfigurationError, StateDirectoryLocked
from forebay.state_store import CommittedOffset
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology_file import load_topology
from forebay_worker.state.checkpoint_file import CheckpointFile
from forebay_worker.state.command import state
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.inspection import IDENTITY_NAME
from forebay_worker.state.relocate import JOURNAL_NAME, RelocationError, relocate
from forebay_worker.state.reserved_records import StoreIdentity
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory

TOPOLOGY = """
application_id = "app"

[[subtopology]]
name = "carriers"
partitions = 4

[[subtopology.store]]
name = "carriers"

[[subtopology]]
name = "orders"
partitions = 4

[[subtopology.store]]
name = "orders"

[[subtopology.store]]
name = "totals"
"""

Run = Callable[..., Result]


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY)
    return path


@pytest.fixture
def state_path(tmp_path: Path) -> Path:
    path = tmp_path / "state" / "app"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def run(topology: Path, state_path: Path) -> Iterator[Run]:
    runner = CliRunner(env={"COLUMNS": "200"})

    def invoke(command: str, *arguments: str) -> Result:
        options = ["--topology", str(topology), "--state-dir", str(state_path.parent)]
        return runner.invoke(state, [command, *options, *arguments])

    yield invoke
    # Whatever a command did, it gave the lock back.
    StateDirectory(state_path.parent, "app").close()


def put(state_path: Path, task: str, store: str, offset: int | None = None) -> None:
    (state_path / task / "rocksdb" / store).mkdir(parents=True)
    if offset is not None:
        line = TopicPartition(f"app-{store}-changelog", TaskId.parse(task).partition)
        CheckpointFile.of(state_path / task).add(line, offset)


def put_rocksdb(state_path: Path, task: str, store: str, position: int) -> None:
    path = state_path / task / "rocksdb" / store
    opened = RocksDbStore(store, path, RocksDbMemory(8 << 20, 8 << 20).options())
    line = TopicPartition(f"app-{store}-changelog", TaskId.parse(task).partition)
    opened.set_identity(StoreIdentity("log-7", *line, "key-value", "string", "json"))
    opened.commit({line: CommittedOffset(position)})
    opened.close()


def stores(state_path: Path) -> list[str]:
    return sorted(f"{path.parents[1].name}/{path.name}" for path in state_path.glob("*/rocksdb/*"))


def rows(output: str) -> list[list[str]]:
    """The cells of the tables printed, blank-separated columns made lists."""
    return [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")
    ]


def test_ls_shows_each_store_its_offset_and_its_place(run: Run, state_path: Path) -> None:
    put_rocksdb(state_path, "1_2", "orders", 12_345)
    put_rocksdb(state_path, "0_1", "totals", 7)
    put(state_path, "0_3", "carriers", offset=99)
    put(state_path, "0_3", "old [bold]:smile:")
    put(state_path, "0_8", "carriers")

    result = run("ls")

    assert result.exit_code == 0, result.output
    assert rows(result.output) == [
        ["0_1", "totals", "log-7", "7", "belongs to 1_1"],
        ["0_3", "carriers", "?", "99", "right"],
        ["0_3", "old [bold]:smile:", "?", "?", "the topology has no store of this name"],
        ["0_8", "carriers", "?", "?", "the store has 4 partitions, from 0"],
        ["1_2", "orders", "log-7", "12,345", "right"],
    ]


def test_ls_shows_the_log_of_a_store_of_ones_own(run: Run, state_path: Path) -> None:
    put(state_path, "1_1", "orders", offset=5)
    identity = StoreIdentity("log-9", "app-orders-changelog", 1, "key-value", "string", "json")
    path = state_path / "1_1" / "rocksdb" / "orders" / IDENTITY_NAME
    path.write_text(json.dumps(asdict(identity)))

    assert rows(run("ls").output) == [["1_1", "orders", "log-9", "5", "right"]]

    path.write_text("nonsense")
    assert rows(run("ls").output) == [["1_1", "orders", "?", "?", "right"]]


def test_ls_shows_what_was_set_aside_and_what_is_in_flight(run: Run, state_path: Path) -> None:
    (state_path / ".set-aside" / "0_1-orders-17").mkdir(parents=True)
    leave_in_flight(state_path)

    result = run("ls")

    assert ["0_1", "orders", "0_1-orders-17"] in rows(result.output)
    assert f"Unfinished, and finished first: the move of {state_path}/0_0/rocksdb/orders to" in result.output
    assert (state_path / JOURNAL_NAME).exists()


def leave_in_flight(state_path: Path) -> None:
    put(state_path, "0_0", "orders", offset=5)
    directory = StateDirectory(state_path.parent, "app")

    def kill(name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relocate(directory, load_topology(state_path.parents[1] / "topology.toml"), kill)
    directory.close()


def test_ls_names_the_state_of_other_processes(run: Run, state_path: Path) -> None:
    """Each process of a worker has a state directory of its own."""
    further = state_path.parent / "process-2" / "app"
    further.mkdir(parents=True)
    put(state_path, "0_1", "carriers")
    put(further, "0_3", "carriers")

    assert "for --process: 2." in run("ls").output
    assert rows(run("ls", "--process", "2").output)[0][0] == "0_3"
    assert json.loads(run("ls", "--json").output)["processes"] == [0, 2]
    assert run("rm", "0_3", "--process", "2").exit_code == 0
    assert (stores(state_path), stores(further)) == (["0_1/carriers"], [])


def test_a_dry_run_shows_the_plan_and_moves_nothing(run: Run, state_path: Path) -> None:
    put(state_path, "0_1", "orders", offset=5)
    put(state_path, "0_1", "removed")

    result = run("relocate", "--dry-run")

    assert result.exit_code == 0, result.output
    assert rows(result.output) == [
        ["0_1", "orders", "1_1", "its ordinal is 1 now"],
        ["0_1", "removed", "left", "the topology has no store of this name"],
    ]
    assert "Dry run, nothing was moved: 1 would be relocated, 0 set aside, 1 left." in result.output
    assert stores(state_path) == ["0_1/orders", "0_1/removed"]


def test_relocate_moves_and_says_what_it_did(run: Run, state_path: Path) -> None:
    put_rocksdb(state_path, "0_1", "orders", 5)
    put_rocksdb(state_path, "1_1", "orders", 4)

    result = run("relocate")

    assert result.exit_code == 0, result.output
    assert rows(result.output) == [
        ["1_1", "orders", "set aside", "0_1 holds the same store and is preferred"],
        ["0_1", "orders", "1_1", "its ordinal is 1 now"],
    ]
    assert "Stores: 1 relocated, 1 set aside, 0 left." in result.output
    assert stores(state_path) == ["1_1/orders"]


def test_relocate_finishes_what_was_begun(run: Run, state_path: Path) -> None:
    leave_in_flight(state_path)

    result = run("relocate")

    assert "Finished the move of" in result.output
    assert stores(state_path) == ["1_0/orders"]
    assert CheckpointFile.of(state_path / "1_0").read() == {TopicPartition("app-orders-changelog", 0): 5}


@pytest.mark.parametrize("end", ["source", "target"])
@pytest.mark.parametrize("place", ["../../precious", "0_0/../../../precious", "/precious"])
def test_a_journal_moves_nothing_in_from_elsewhere_nor_out(
    run: Run, state_path: Path, tmp_path: Path, end: str, place: str
) -> None:
    leave_in_flight(state_path)
    (tmp_path / "precious").mkdir()
    journal = json.loads((state_path / JOURNAL_NAME).read_text())
    outside = str(tmp_path / "precious") if place == "/precious" else place
    (state_path / JOURNAL_NAME).write_text(json.dumps(journal | {end: outside}))
    before = sorted(tmp_path.rglob("*"))
    for command in (("relocate",), ("rm", "0_0")):
        error = run(*command).exception
        assert isinstance(error, RelocationError)
        assert outside in str(error)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", [("ls",), ("relocate",), ("rm", "1_1")])
def test_a_link_to_elsewhere_is_named_and_nothing_is_changed(
    run: Run, state_path: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    put(state_path, "1_2", "orders")
    put(tmp_path / "elsewhere", "1_1", "orders")
    (state_path / "1_1").symlink_to(tmp_path / "elsewhere/1_1")
    error = run(*command).exception
    assert isinstance(error, ConfigurationError)
    assert f"{state_path / '1_1'} is a symbolic link" in str(error)
    assert stores(tmp_path / "elsewhere") == ["1_1/orders"]
    (state_path / "1_1").unlink()


def test_relocate_where_all_is_in_place_does_nothing(run: Run, state_path: Path) -> None:
    put(state_path, "1_1", "orders")

    result = run("relocate")

    assert result.output.strip() == "Stores: 0 relocated, 0 set aside, 0 left."


def test_rm_removes_one_store_and_its_line(run: Run, state_path: Path) -> None:
    put(state_path, "1_1", "orders", offset=5)
    put(state_path, "1_1", "totals", offset=6)
    put(state_path, "1_2", "orders", offset=7)

    result = run("rm", "1_1", "orders")

    assert result.output.strip() == "Removed 1_1/rocksdb/orders."
    assert stores(state_path) == ["1_1/totals", "1_2/orders"]
    assert CheckpointFile.of(state_path / "1_1").read() == {TopicPartition("app-totals-changelog", 1): 6}
    assert list(state_path.glob(".set-aside/*")) == []


def test_rm_removes_all_stores_of_a_task_and_no_line_stays(run: Run, state_path: Path) -> None:
    put(state_path, "1_1", "orders", offset=5)
    put(state_path, "1_1", "removed", offset=6)
    put(state_path, "1_2", "orders", offset=7)

    result = run("rm", "1_1")

    assert result.exit_code == 0, result.output
    assert stores(state_path) == ["1_2/orders"]
    assert not (state_path / "1_1" / ".checkpoint").exists()


def test_rm_of_a_removed_store_removes_its_line(run: Run, state_path: Path) -> None:
    """The topology no longer has the store."""
    put(state_path, "1_1", "orders", offset=5)
    put(state_path, "1_1", "removed", offset=6)

    run("rm", "1_1", "removed")

    assert CheckpointFile.of(state_path / "1_1").read() == {TopicPartition("app-orders-changelog", 1): 5}


def test_rm_removes_what_was_set_aside(run: Run, state_path: Path) -> None:
    for name in ("0_1-orders-17", "0_1-orders-18", "0_2-orders-19", "0_1-orders-2024-20"):
        (state_path / ".set-aside" / name).mkdir(parents=True)

    result = run("rm", "0_1", "orders")

    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in state_path.glob(".set-aside/*")) == ["0_1-orders-2024-20", "0_2-orders-19"]


@pytest.mark.parametrize("arguments", [("3_0",), ("1_1", "totals"), ("1_1", "../../1_2/rocksdb/orders")])
def test_rm_of_what_is_not_there_is_an_error(run: Run, state_path: Path, arguments: tuple[str, ...]) -> None:
    put(state_path, "1_1", "orders")
    put(state_path, "1_2", "orders")

    result = run("rm", *arguments)

    assert isinstance(result.exception, ConfigurationError)
    assert f"Task {arguments[0]} has no store" in str(result.exception)
    assert "forebay state ls" in str(result.exception)
    assert stores(state_path) == ["1_1/orders", "1_2/orders"]


def test_rm_wants_a_task_id(run: Run) -> None:
    result = run("rm", "orders")

    assert result.exit_code == 2
    assert "'orders' is not a task id of the form <ordinal>_<partition>" in result.output


@pytest.mark.parametrize("command", [("ls",), ("relocate",), ("relocate", "--dry-run"), ("rm", "0_1")])
def test_every_command_refuses_while_a_worker_runs(run: Run, state_path: Path, command: tuple[str, ...]) -> None:
    put(state_path, "0_1", "orders")
    worker = StateDirectory(state_path.parent, "app")

    result = run(*command)
    worker.close()

    assert isinstance(result.exception, StateDirectoryLocked)
    assert stores(state_path) == ["0_1/orders"]


def test_unknown_state_dir_is_an_error_and_not_created(topology: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(state, ["ls", "--topology", str(topology), "--state-dir", str(tmp_path / "typo")])

    assert isinstance(result.exception, ConfigurationError)
    assert "no state of application 'app'" in str(result.exception)
    assert not (tmp_path / "typo").exists()


def test_paths_may_come_from_the_environment(topology: Path, state_path: Path) -> None:
    put(state_path, "1_1", "orders")
    environment = {"FOREBAY_TOPOLOGY": str(topology), "FOREBAY_STATE_DIR": str(state_path.parent)}

    result = CliRunner().invoke(state, ["ls"], env=environment)

    assert "orders" in result.output
