"""State on a file system that renames no directory of it, as the lower layer of an overlay."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.stored_keys import USER_TAG
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.relocate import prepare_state, relocate
from forebay_worker.state.store_factory import StoreFactory
from forebay_worker.tasks.manager import TaskManager
from tests.support.cluster import wait_until
from tests.support.disks import overlay
from tests.support.held_tasks import (
    MEMORY,
    TASKS,
    TOPIC,
    TOPOLOGY,
    applied,
    fill,
    make_changelog,
    offsets,
    started,
)
from tests.support.kill_points import killed_before, refuse_renames

STORES = ("a", "b")


@pytest.fixture(params=["overlay", "refused"])
def as_lower_layer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes what is in the state directory the lower layer, until the end of the block."""

    @contextmanager
    def mounted() -> Iterator[None]:
        if request.param == "overlay":
            with overlay(tmp_path / "state"):
                yield
            return
        there = {str(path) for path in (tmp_path / "state").rglob("*")}
        refuse_renames(monkeypatch, there.__contains__)
        yield

    return mounted


def swapped() -> Topology:
    stores = [{"name": f"s-{name}", "partitions": 1, "store": [{"name": name}]} for name in reversed(STORES)]
    return parse_topology({"application_id": "app", "subtopology": stores})


def put_stores(state: Path) -> None:
    directory = StateDirectory(state, "app")
    for ordinal, name in enumerate(STORES):
        path = directory.store_path(TaskId(ordinal, 0), name)
        (path / "deep").mkdir(parents=True)
        (path / "deep/mark").write_text(name)
        (path / "CURRENT").write_text(name)
    directory.close()


def is_restored(manager: TaskManager) -> bool:
    return len(manager.replicas) == len(TASKS) and applied(manager) == offsets()


def content(directory: StateDirectory) -> dict[str, list[str]]:
    """The files of every store, by its place."""
    found = {}
    for task, name in directory.stores_on_disk():
        path = directory.store_path(task, name)
        files = sorted(file for file in path.rglob("*") if file.name in ("CURRENT", "mark"))
        found[f"{task}/{name}"] = [f"{file.relative_to(path)}={file.read_text()}" for file in files]
    return found


IN_PLACE = {f"{n}_0/{name}": [f"CURRENT={name}", f"deep/mark={name}"] for n, name in enumerate(reversed(STORES))}


def test_a_damaged_store_is_rebuilt_where_it_is(tmp_path, as_lower_layer, caplog):
    changelog = make_changelog(tmp_path)
    fill(tmp_path, changelog)
    (tmp_path / f"state/app/{TASKS[2]}/rocksdb/a/CURRENT").write_text("MANIFEST-999999\n")
    with as_lower_layer(), started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: is_restored(manager), "it is rebuilt")
        assert manager.replicas["a", 2].view.store.get(USER_TAG + b"k") is not None
    assert "deleted and rebuilt" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_store_found_damaged_while_it_is_open_is_rebuilt(tmp_path, as_lower_layer):
    changelog = make_changelog(tmp_path)
    fill(tmp_path, changelog)
    with as_lower_layer(), started(tmp_path, changelog, StoreFactory) as manager:
        manager.hold(TASKS, ())
        wait_until(lambda: is_restored(manager), "all is applied")
        replica = manager.replicas["a", 2]
        before = replica.view.store
        replica.on_corrupted(replica, before, "a block of it is damaged")
        wait_until(lambda: replica.view.store is not before and replica.view.restored, "it is rebuilt")
        assert applied(manager) == offsets()


def test_stores_are_relocated_once(tmp_path, as_lower_layer):
    put_stores(tmp_path / "state")
    with as_lower_layer():
        for moves in (2, 0):
            directory = StateDirectory(tmp_path / "state", "app")
            assert len(relocate(directory, swapped()).plan.moves) == moves
            assert content(directory) == IN_PLACE
            directory.close()


def test_released_stores_are_deleted(tmp_path, as_lower_layer):
    put_stores(tmp_path / "state")
    with as_lower_layer():
        directory = StateDirectory(tmp_path / "state", "app")
        directory.delete_store(TaskId(0, 0), "a")
        assert list(content(directory)) == ["1_0/b"]
        directory.close()


def test_a_relocation_that_copies_survives_a_kill_at_each_step(tmp_path):
    for number in itertools.count():
        state = tmp_path / str(number)
        put_stores(state)
        directory = StateDirectory(state, "app")
        there = [str(path) for path in state.rglob("*")]
        with pytest.MonkeyPatch.context() as patch:
            refuse_renames(patch, there.__contains__)
            killed = killed_before(number, lambda: relocate(directory, swapped()))  # noqa: B023
            directory.close()
            directory = StateDirectory(state, "app")
            prepare_state(directory, swapped(), True)
        assert content(directory) == IN_PLACE
        directory.delete_leftovers()
        assert list(directory.path.rglob(".deleting-*")) == []
        directory.close()
        if not killed:
            break
    assert number > 20


@pytest.mark.parametrize("renames", [True, False])
def test_no_kill_leaves_half_of_a_store_that_is_taken_for_one(tmp_path, renames):
    def deleted(directory: StateDirectory) -> None:
        directory.delete_store(TaskId(0, 0), "a")

    def replaced(directory: StateDirectory) -> None:
        directory.make_way(TaskId(0, 0), "a")
        directory.discard_set_aside("a", 0)

    whole = ["CURRENT=a", "deep/mark=a"]
    for act, number in itertools.product((deleted, replaced), range(20)):
        state = tmp_path / f"{act.__name__}-{number}"
        put_stores(state)
        directory = StateDirectory(state, "app")
        there = [] if renames else [str(path) for path in state.rglob("*")]
        with pytest.MonkeyPatch.context() as patch:
            refuse_renames(patch, there.__contains__)
            killed = killed_before(number, lambda: act(directory))  # noqa: B023
            directory.close()
            directory = StateDirectory(state, "app")
            left = content(directory).get("0_0/a")
        # An empty directory is no store, wherever it is.
        assert left in ([whole, [], None] if killed else [None])
        directory.delete_leftovers()
        assert list(directory.path.rglob(".deleting-*")) == []
        directory.close()
    assert not killed


def test_what_could_not_be_deleted_completely_is_not_opened(tmp_path, monkeypatch):
    changelog = make_changelog(tmp_path)
    fill(tmp_path, changelog)
    directory = StateDirectory(tmp_path / "state", "app")
    half = directory.store_path(TASKS[2], "a")
    refuse_renames(monkeypatch, str(half).__eq__)
    assert killed_before(4, lambda: directory.delete_store(TASKS[2], "a"))
    assert half.exists()
    opened = StoreFactory(directory, changelog, MEMORY, 300_000).open(TASKS[2], TOPOLOGY.stores["a"])
    assert opened.store.committed_offset(TopicPartition(TOPIC, 2)) is None
    opened.store.close()
    directory.close()
