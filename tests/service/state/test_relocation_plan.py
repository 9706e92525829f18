import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.linux import sync_file_system
from forebay.state_store import CommittedOffset
from forebay.task_ids import TaskId, TopicPartition
from forebay.topology import Topology
from forebay.topology_file import parse_topology
from forebay_worker.state.checkpoint_file import CheckpointFile
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.inspection import read_content
from forebay_worker.state.relocate import (
    JOURNAL_NAME,
    Relocation,
    RelocationError,
    StateMisplaced,
    in_flight,
    prepare_state,
    relocate,
    settle,
)
from forebay_worker.state.relocation_plan import (
    StoreContent,
    StoreOnDisk,
    collisions,
    plan_relocation,
)
from forebay_worker.state.reserved_records import StoreIdentity
from forebay_worker.state.rocksdb import RocksDbStore
from forebay_worker.state.rocksdb_memory import RocksDbMemory

FOUR = ("a", "b", "c", "d")
LEGACY = ("b", "c")
PERMUTATIONS = list(itertools.permutations(FOUR))
OFFSET_OF = {"b": 1_002, "c": 1_003}


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


class KillAt:
    """A step hook that kills at the n-th step, counted from 0, and checks the order of lines at each."""

    def __init__(self, directory: StateDirectory, number: int = -1) -> None:
        self.directory = directory
        self.number = number
        self.steps: list[str] = []

    def __call__(self, name: str) -> None:
        assert_no_line_without_its_store(self.directory.path)
        self.steps.append(name)
        if len(self.steps) - 1 == self.number:
            raise Killed


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    opened = StateDirectory(tmp_path, "app")
    yield opened
    opened.close()


def topology(*subtopologies: str, partitions: int = 1) -> Topology:
    """Sub-topologies in order, each given by its stores' names, blank-separated."""
    return parse_topology(
        {
            "application_id": "app",
            "subtopology": [
                {"name": f"s{n}", "partitions": partitions, "store": [{"name": name} for name in names.split()]}
                for n, names in enumerate(subtopologies)
            ],
        }
    )


def line_of(store: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(f"app-{store}-changelog", partition)


def put(directory: StateDirectory, task: str, store: str, offset: int | None = None, mark: str = "") -> Path:
    """A store that is known by what is written in it; with an offset, one of the kind that needs a checkpoint."""
    path = directory.store_path(TaskId.parse(task), store)
    path.mkdir(parents=True)
    (path / "mark").write_text(mark or f"{store}_{TaskId.parse(task).partition}")
    if offset is not None:
        CheckpointFile.of(path.parents[1]).add(line_of(store, TaskId.parse(task).partition), offset)
    return path


def put_rocksdb(
    directory: StateDirectory,
    task: str,
    store: str,
    position: int,
    log_identity: str = "log",
    kind: str = "key-value",
) -> None:
    parsed = TaskId.parse(task)
    opened = RocksDbStore(store, directory.store_path(parsed, store), RocksDbMemory(8 << 20, 8 << 20).options())
    topic_partition = line_of(store, parsed.partition)
    opened.set_identity(StoreIdentity(log_identity, *topic_partition, kind, "string", "json"))
    opened.commit({topic_partition: CommittedOffset(position)})
    opened.close()


def marks(directory: StateDirectory) -> dict[str, str]:
    return {
        f"{task}/{store}": (directory.store_path(task, store) / "mark").read_text()
        for task, store in directory.stores_on_disk()
    }


def places(directory: StateDirectory) -> list[str]:
    return [f"{task}/{store}" for task, store in directory.stores_on_disk()]


def lines(directory: StateDirectory) -> dict[str, dict[str, int]]:
    """Every checkpoint line, by task and topic-partition."""
    return {
        file.parent.name: {str(line): offset for line, offset in CheckpointFile(file).read().items()}
        for file in sorted(directory.path.glob("*/.checkpoint"))
    }


def set_asides(directory: StateDirectory) -> list[str]:
    return sorted(path.name.rpartition("-")[0] for path in directory.path.glob(".set-aside/*"))


def assert_no_line_without_its_store(path: Path) -> None:
    for file in path.glob("*/.checkpoint"):
        for topic, _ in CheckpointFile(file).read():
            store = topic.removeprefix("app-").removesuffix("-changelog")
            assert (file.parent / "rocksdb" / store / "mark").exists(), (
                f"{file} tells of {store}, which is not there"
            )


def put_four(directory: StateDirectory) -> None:
    for ordinal, store in enumerate(FOUR):
        put(directory, f"{ordinal}_0", store, OFFSET_OF.get(store))


def assert_four_in_place(directory: StateDirectory, order: tuple[str, ...]) -> None:
    assert marks(directory) == {f"{n}_0/{store}": f"{store}_0" for n, store in enumerate(order)}
    assert lines(directory) == {
        f"{n}_0": {f"app-{store}-changelog-0": OFFSET_OF[store]}
        for n, store in enumerate(order)
        if store in LEGACY
    }
    assert set_asides(directory) == []
    assert in_flight(directory.path) is None


def test_stores_in_their_place_stay() -> None:
    expected = topology("a", "b c", partitions=2)
    found = [(TaskId(0, 1), "a"), (TaskId(1, 0), "b"), (TaskId(1, 0), "c")]

    plan = plan_relocation(found, expected)

    assert plan.moves == ()
    assert plan.left == ()


def test_one_task_directory_may_feed_two() -> None:
    plan = plan_relocation([(TaskId(0, 5), "a"), (TaskId(0, 5), "b")], topology("x", "a", "b", partitions=6))

    assert [(move.store, move.source, move.target) for move in plan.moves] == [
        ("a", TaskId(0, 5), TaskId(1, 5)),
        ("b", TaskId(0, 5), TaskId(2, 5)),
    ]
    assert str(plan.moves[0]) == "0_5/rocksdb/a → 1_5/rocksdb/a: its ordinal is 1 now"


def test_stores_without_a_place_are_left_and_reported() -> None:
    """The topology removed the store or has fewer partitions."""
    plan = plan_relocation([(TaskId(0, 0), "gone"), (TaskId(0, 7), "a")], topology("x", "a", partitions=4))

    assert plan.moves == ()
    assert [str(left) for left in plan.left] == [
        "0_0/rocksdb/gone is left: the topology has no store of this name",
        "0_7/rocksdb/a is left: the store has 4 partitions, from 0",
    ]


NAMES = "abcdef"
tasks = st.builds(TaskId, st.integers(0, 4), st.integers(0, 3))
found_stores = st.lists(st.tuples(tasks, st.sampled_from(NAMES + "gh")), unique=True, max_size=24)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    ordinals = [draw(st.integers(0, 3)) for _ in names]
    subtopologies = [[name for name, at in zip(names, ordinals, strict=True) if at == n] for n in range(4)]
    return parse_topology(
        {
            "application_id": "app",
            "subtopology": [
                {"name": f"s{n}", "partitions": draw(st.integers(1, 4)), "store": [{"name": s} for s in stores]}
                for n, stores in enumerate(subtopologies)
                if stores
            ],
        }
    )


def content_of(log_identity: str | None, kind: str, position: int | None, on_disk: StoreOnDisk) -> StoreContent:
    task, store = on_disk
    topic_partition = line_of(store, task.partition)
    return StoreContent(
        log_identity and StoreIdentity(log_identity, *topic_partition, kind, "string", "json"),
        {} if position is None else {topic_partition: position},
    )


contents = st.tuples(
    st.sampled_from([None, "log", "other log"]),
    st.sampled_from(["key-value", "key-value", "window"]),
    st.none() | st.integers(0, 3),
)


@settings(max_examples=300, deadline=None)
@given(found_stores, topologies(), st.data())
def test_every_store_found_ends_in_its_place_aside_or_reported(
    found: list[StoreOnDisk], expected: Topology, data: st.DataObject
) -> None:
    inspected = collisions(found, expected)
    reported = {on_disk: content_of(*data.draw(contents), on_disk) for on_disk in inspected}

    plan = plan_relocation(found, expected, reported)

    origin = {on_disk: on_disk for on_disk in found}
    aside = []
    for move in plan.moves:
        store = origin.pop((move.source, move.store))
        if move.target is None:
            aside.append(store)
        else:
            assert move.target.partition == move.source.partition
            assert (move.target, move.store) not in origin, "a rename would overwrite"
            origin[move.target, move.store] = store
    assert sorted([*origin.values(), *aside]) == sorted(found), "a store was lost"

    left = {(item.task, item.store) for item in plan.left}
    for (task, store), was in origin.items():
        spec = expected.stores.get(store)
        if spec is None or task.partition >= spec.partitions:
            assert (task, store) in left
            assert was == (task, store)
        else:
            assert task.ordinal == expected.ordinal_by_store[store]
            assert (task, store) not in left
    assert set(aside) <= set(inspected)
    assert len(inspected) - len(aside) == len({(store, task.partition) for task, store in inspected})
    assert plan_relocation(origin, expected).moves == (), "a second start would move something"

    for loser in aside:
        place = (TaskId(expected.ordinal_by_store[loser[1]], loser[0].partition), loser[1])
        assert_rightly_preferred(origin[place], loser, place, reported)


def assert_rightly_preferred(
    winner: StoreOnDisk, loser: StoreOnDisk, place: StoreOnDisk, reported: dict[StoreOnDisk, StoreContent]
) -> None:
    kept, lost = reported[winner], reported[loser]
    offset, lost_offset = usable(kept, winner), usable(lost, loser)
    if lost_offset is None:
        return
    assert offset is not None, "a usable store made way for an unusable one"
    same_log = kept.identity and lost.identity and kept.identity.log == lost.identity.log
    if same_log:
        assert offset >= lost_offset
    if loser == place:
        assert same_log, "the one in place made way for a store of another log"
        assert offset > lost_offset


def usable(content: StoreContent, on_disk: StoreOnDisk) -> int | None:
    if content.identity is not None and content.identity.kind != "key-value":
        return None
    return content.offsets.get(line_of(on_disk[1], on_disk[0].partition))


@pytest.mark.parametrize("order", PERMUTATIONS, ids="".join)
def test_every_permutation_survives_a_kill_at_each_step(order: tuple[str, ...]) -> None:
    """Four stores change places, and the second start may have another topology."""
    after = topology(*order)
    another = tuple(reversed(order[1:] + order[:1]))
    for second, second_order in ((after, order), (topology(*another), another)):
        for number in itertools.count():
            with tempfile.TemporaryDirectory() as state_dir:
                directory = StateDirectory(Path(state_dir), "app")
                put_four(directory)
                kill = KillAt(directory, number)
                killed = True
                try:
                    relocate(directory, after, kill)
                    killed = False
                except Killed:
                    relocate(directory, second, KillAt(directory))
                assert_four_in_place(directory, second_order if killed else order)
                directory.close()
            if not killed:
                break
        misplaced = sum(store != home for store, home in zip(order, FOUR, strict=True))
        assert number > misplaced, "each store that moves is at least one step"


def test_killed_at_every_second_start_too(tmp_path: Path) -> None:
    """A start that settles what another began may itself be killed, at each of its steps."""
    orders = [PERMUTATIONS[n] for n in (23, 9, 16)]
    for first, second in itertools.product(range(12), range(12)):
        directory = StateDirectory(tmp_path / f"{first}-{second}", "app")
        put_four(directory)
        for order, number in zip(orders, (first, second, -1), strict=True):
            try:
                relocate(directory, topology(*order), KillAt(directory, number))
            except Killed:
                continue
        assert_four_in_place(directory, orders[-1])
        directory.close()


CHILD = """
import os, signal, sys
from pathlib import Path
from forebay.topology_file import load_topology
from forebay_worker.state.directory import StateDirectory
from forebay_worker.state.relocate import relocate

state_dir, topology, last = Path(sys.argv[1]), load_topology(sys.argv[2]), int(sys.argv[3])
steps = []
def step(name):
    steps.append(name)
    if len(steps) == last:
        os.kill(os.getpid(), signal.SIGKILL)
relocate(StateDirectory(state_dir, "app"), topology, step)
"""


@pytest.mark.parametrize("last", range(1, 9))
def test_sigkilled_relocation_is_finished_by_the_next_start(tmp_path: Path, last: int) -> None:
    state_dir, order = tmp_path / "state", ("b", "c", "d", "a")
    directory = StateDirectory(state_dir, "app")
    put_four(directory)
    directory.close()
    file = tmp_path / "topology.toml"
    file.write_text(
        'application_id = "app"\n'
        + "".join(
            f'[[subtopology]]\nname = "s_{store}"\npartitions = 1\n[[subtopology.store]]\nname = "{store}"\n'
            for store in order
        )
    )

    child = subprocess.run([sys.executable, "-c", CHILD, state_dir, file, str(last)], timeout=60, check=False)

    assert child.returncode == -signal.SIGKILL
    directory = StateDirectory(state_dir, "app")
    assert_no_line_without_its_store(directory.path)
    relocate(directory, topology(*order), KillAt(directory))
    assert_four_in_place(directory, order)
    directory.close()


def test_sub_topologies_merge(directory: StateDirectory) -> None:
    for store, ordinal in (("a", 0), ("b", 1), ("c", 2)):
        for partition in range(3):
            put(directory, f"{ordinal}_{partition}", store, offset=10 * ordinal + partition)

    relocate(directory, topology("a b c", partitions=3), KillAt(directory))

    assert marks(directory) == {f"0_{p}/{store}": f"{store}_{p}" for p in range(3) for store in "abc"}
    assert lines(directory) == {
        f"0_{p}": {f"app-{store}-changelog-{p}": 10 * n + p for n, store in enumerate("abc")} for p in range(3)
    }
    assert sorted(path.name for path in directory.path.glob("[0-9]*")) == ["0_0", "0_1", "0_2"]


def test_a_sub_topology_splits(directory: StateDirectory) -> None:
    for partition in range(3):
        for n, store in enumerate("abc"):
            put(directory, f"0_{partition}", store, offset=10 * n + partition)

    relocate(directory, topology("b", "a", "c", partitions=3), KillAt(directory))

    assert marks(directory) == {
        f"{o}_{p}/{store}": f"{store}_{p}" for o, store in enumerate("bac") for p in range(3)
    }
    assert lines(directory)["2_1"] == {"app-c-changelog-1": 21}
    assert lines(directory)["0_2"] == {"app-b-changelog-2": 12}


def test_what_the_topology_does_not_know_stays_with_its_line(directory: StateDirectory) -> None:
    put(directory, "0_0", "removed", offset=5)
    put(directory, "0_0", "a", offset=6)
    put(directory, "0_9", "a", offset=7)

    relocation = relocate(directory, topology("x", "a"))

    assert marks(directory) == {"0_0/removed": "removed_0", "0_9/a": "a_9", "1_0/a": "a_0"}
    assert lines(directory) == {
        "0_0": {"app-removed-changelog-0": 5},
        "0_9": {"app-a-changelog-9": 7},
        "1_0": {"app-a-changelog-0": 6},
    }
    assert {(str(left.task), left.store) for left in relocation.plan.left} == {("0_0", "removed"), ("0_9", "a")}


def test_stale_line_is_not_given_to_an_arriving_store(directory: StateDirectory) -> None:
    put(directory, "0_0", "a")
    (directory.path / "1_0").mkdir()
    CheckpointFile.of(directory.path / "1_0").write({line_of("a"): 900, line_of("b"): 1})

    relocate(directory, topology("x", "a"))

    assert places(directory) == ["1_0/a"]
    assert lines(directory) == {"1_0": {"app-b-changelog-0": 1}}


@pytest.mark.parametrize("malformed", ["0_0", "1_0"])
def test_malformed_checkpoint_costs_a_rebuild(
    directory: StateDirectory, malformed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No store gets a wrong offset."""
    put(directory, "0_0", "a", offset=500)
    put(directory, "1_0", "b", offset=600)
    file = CheckpointFile.of(directory.path / malformed)
    file.path.write_text("0\n9\n")

    relocate(directory, topology("x", "a b"))

    assert places(directory) == ["1_0/a", "1_0/b"]
    assert f"{file.path}, line 2" in caplog.text
    if malformed == "0_0":
        assert lines_of(directory, "1_0") == {line_of("b"): 600}
    else:
        assert not CheckpointFile.of(directory.path / "0_0").path.exists()
        assert file.path.read_text() == "0\n9\n"


def lines_of(directory: StateDirectory, task: str) -> dict[TopicPartition, int]:
    return CheckpointFile.of(directory.path / task).read()


@pytest.mark.parametrize(
    ("in_place", "misplaced", "kept"),
    [
        ((100, "log", "key-value"), (200, "log", "key-value"), 200),
        ((200, "log", "key-value"), (100, "log", "key-value"), 200),
        ((100, "log", "key-value"), (100, "log", "key-value"), 100),
        ((100, "log", "key-value"), (200, "another log", "key-value"), 100),
        ((900, "log", "window"), (200, "log", "key-value"), 200),
        ((100, "log", "key-value"), (900, "log", "window"), 100),
    ],
)
def test_colliding_store_is_set_aside(
    directory: StateDirectory,
    in_place: tuple[int, str, str],
    misplaced: tuple[int, str, str],
    kept: int,
) -> None:
    """Of two stores for one place the one at the higher offset stays."""
    put_rocksdb(directory, "1_2", "a", *in_place)
    put_rocksdb(directory, "0_2", "a", *misplaced)

    plan = relocate(directory, topology("x", "a", partitions=3)).plan

    loser = "0_2" if kept == in_place[0] else "1_2"
    assert places(directory) == ["1_2/a"]
    assert read_content(directory.store_path(TaskId(1, 2), "a")).offsets == {line_of("a", 2): kept}
    assert set_asides(directory) == [f"{loser}-a"]
    assert [str(move.source) for move in plan.moves if move.target is None] == [loser]
    [aside] = directory.path.glob(".set-aside/*")
    assert read_content(aside).offsets == {line_of("a", 2): in_place[0] if loser == "1_2" else misplaced[0]}


def test_a_store_that_cannot_be_read_makes_way_for_one_that_can(directory: StateDirectory) -> None:
    put_rocksdb(directory, "1_0", "a", 900)
    put_rocksdb(directory, "0_0", "a", 200)
    (directory.store_path(TaskId(1, 0), "a") / "CURRENT").write_text("nonsense\n")

    relocate(directory, topology("x", "a"))

    assert read_content(directory.store_path(TaskId(1, 0), "a")).offsets == {line_of("a"): 200}
    assert set_asides(directory) == ["1_0-a"]


def test_empty_directory_in_the_place_is_set_aside(directory: StateDirectory) -> None:
    put_rocksdb(directory, "0_0", "a", 200)
    directory.store_path(TaskId(1, 0), "a").mkdir(parents=True)

    relocate(directory, topology("x", "a"))

    assert read_content(directory.store_path(TaskId(1, 0), "a")).offsets == {line_of("a"): 200}
    [aside] = directory.path.glob(".set-aside/*")
    assert aside.name.startswith("1_0-a-")
    assert list(aside.iterdir()) == []


@pytest.mark.parametrize(("in_place", "kept"), [(7, "in place"), (None, "misplaced")])
def test_legacy_collision_is_decided_by_checkpoints(tmp_path: Path, in_place: int | None, kept: str) -> None:
    """Every kill in between leads to the same result."""
    for number in itertools.count():
        directory = StateDirectory(tmp_path / str(number), "app")
        put(directory, "1_0", "a", in_place, mark="in place")
        put(directory, "0_0", "a", 9, mark="misplaced")
        expected, killed = topology("x", "a"), True
        try:
            relocate(directory, expected, KillAt(directory, number))
            killed = False
        except Killed:
            relocate(directory, expected, KillAt(directory))
        assert marks(directory) == {"1_0/a": kept}
        assert lines(directory) == {"1_0": {"app-a-changelog-0": 7 if kept == "in place" else 9}}
        [aside] = directory.path.glob(".set-aside/*")
        assert {kept, (aside / "mark").read_text()} == {"in place", "misplaced"}
        directory.close()
        if not killed:
            break


def test_only_a_collision_opens_a_store(directory: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(
        "forebay_worker.state.relocate.read_content", lambda path: opened.append(path) or StoreContent()
    )
    for store, task in (("a", "0_0"), ("b", "1_0"), ("c", "0_0"), ("c", "1_0")):
        put(directory, task, store)

    relocate(directory, topology("b", "a c"))

    assert opened == [directory.store_path(TaskId(ordinal, 0), "c") for ordinal in (0, 1)]


def test_a_move_is_journalled_and_made_durable_in_order(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(directory, "0_0", "a", offset=5)
    events: list[str] = []

    def record(name: str) -> None:
        real = getattr(os, name)

        def call(first: int | Path, *rest: Path) -> None:
            path = rest[0] if rest else Path(os.readlink(f"/proc/self/fd/{first}"))
            events.append(f"{name} {path.relative_to(directory.path)}")
            real(first, *rest)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "rename", "replace"):
        record(name)
    relocate(directory, topology("x", "a"), events.append)
    order = [event for event in events if event != "fsync 0_0"]

    synced = order.index("directories synced")
    assert order[:5] == [
        f"fsync {JOURNAL_NAME}.tmp",
        f"replace {JOURNAL_NAME}",
        "fsync .",
        "journal written",
        "line removed",
    ]
    assert order[5:7] == ["rename 1_0/rocksdb/a", "renamed"]
    assert set(order[7:synced]) == {"fsync 0_0/rocksdb", "fsync 1_0/rocksdb", "fsync 1_0", "fsync ."}
    assert order[synced + 1 :] == [
        "fsync 1_0/.checkpoint.tmp",
        "replace 1_0/.checkpoint",
        "fsync 1_0",
        "line added",
        "fsync .",
        "journal removed",
        "directories synced",
    ]


def test_very_many_moves_are_made_durable_by_one_flush(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 60
    for partition in range(count):
        put(directory, f"0_{partition}", "a")
    where: list[int] = []

    def record(path: Path) -> None:
        where.append(len(list(directory.path.glob("1_*/rocksdb/a"))))
        sync_file_system(path)

    monkeypatch.setattr("forebay_worker.state.fsync.sync_file_system", record)
    relocate(directory, topology("x", "a", partitions=count))
    assert where == [count]


def test_many_plain_moves_are_made_durable_together(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(3):
        put(directory, f"0_{partition}", "a")
    (directory.path / "1_0" / "rocksdb").mkdir(parents=True)
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(directory.path)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    relocate(directory, topology("x", "a", partitions=3))

    made = ["1_1", "1_2", "."]
    assert sorted(synced) == sorted([*(f"{o}_{p}/rocksdb" for o in (0, 1) for p in range(3)), *made])


def test_store_appearing_after_the_plan_is_not_overwritten(directory: StateDirectory) -> None:
    put(directory, "0_0", "a")
    put(directory, "0_0", "b")
    appearing = directory.store_path(TaskId(1, 0), "b")

    with pytest.raises(RelocationError, match="which exists"):
        relocate(directory, topology("x", "a b"), lambda name: appearing.mkdir(exist_ok=True))

    assert places(directory) == ["0_0/b", "1_0/a", "1_0/b"]
    assert list(appearing.iterdir()) == []


def killed_after(directory: StateDirectory, expected: Topology, step: str) -> None:
    def kill(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.raises(Killed):
        relocate(directory, expected, kill)


def test_store_replacing_one_in_flight_gets_no_line(directory: StateDirectory) -> None:
    put(directory, "0_0", "a", offset=5)
    killed_after(directory, topology("x", "a"), "line removed")
    put(directory, "1_0", "a", mark="begun anew")

    relocate(directory, topology("x", "a"))

    assert marks(directory) == {"1_0/a": "begun anew"}
    assert set_asides(directory) == ["0_0-a"]
    assert lines(directory) == {}


@pytest.mark.parametrize("step", ["journal written", "line removed", "renamed", "line added"])
def test_a_store_removed_by_hand_while_in_flight_leaves_no_line(directory: StateDirectory, step: str) -> None:
    put(directory, "0_0", "a", offset=5)
    killed_after(directory, topology("x", "a"), step)
    for task_path in directory.path.glob("[0-9]*"):
        for path in sorted(task_path.rglob("*"), reverse=True):
            if path.name != ".checkpoint":
                path.rmdir() if path.is_dir() else path.unlink()

    relocate(directory, topology("x", "a"))

    assert places(directory) == []
    assert lines(directory) == {}
    assert in_flight(directory.path) is None


def test_settle_finishes_the_move_in_flight_only(directory: StateDirectory) -> None:
    put(directory, "0_0", "a", offset=5)
    put(directory, "0_0", "b", offset=6)
    killed_after(directory, topology("x", "a", "b"), "renamed")

    settled = settle(directory)

    assert settled is not None
    assert settled.target == directory.store_path(TaskId(1, 0), "a")
    assert places(directory) == ["0_0/b", "1_0/a"]
    assert lines(directory) == {"0_0": {"app-b-changelog-0": 6}, "1_0": {"app-a-changelog-0": 5}}


def test_invalid_journal_is_an_error_with_the_remedy(directory: StateDirectory) -> None:
    put(directory, "0_0", "a", offset=5)
    (directory.path / JOURNAL_NAME).write_text("{}")

    with pytest.raises(RelocationError, match="Remove it"):
        relocate(directory, topology("x", "a"))

    assert places(directory) == ["0_0/a"]


def test_failed_relocation_goes_on_at_the_next_start(
    directory: StateDirectory,
) -> None:
    """The error names the remedy."""
    put(directory, "0_0", "a", offset=5)
    blocked = directory.path / "1_0"
    blocked.write_text("a file where a directory should be")

    with pytest.raises(RelocationError, match="start again"):
        relocate(directory, topology("x", "a"))
    blocked.unlink()
    relocate(directory, topology("x", "a"))

    assert marks(directory) == {"1_0/a": "a_0"}
    assert lines(directory) == {"1_0": {"app-a-changelog-0": 5}}


def test_a_second_run_has_nothing_to_do(directory: StateDirectory) -> None:
    put_four(directory)
    relocate(directory, topology(*PERMUTATIONS[-1]))

    again = relocate(directory, topology(*PERMUTATIONS[-1]))

    assert again == Relocation(None, plan_relocation([], topology("a")))


def test_with_relocation_off_a_start_refuses_with_the_plan(directory: StateDirectory) -> None:
    put(directory, "0_3", "a")

    with pytest.raises(StateMisplaced, match="0_3/rocksdb/a → 1_3/rocksdb/a") as raised:
        prepare_state(directory, topology("x", "a", partitions=4), automatic=False)

    assert "forebay state relocate" in str(raised.value)
    assert places(directory) == ["0_3/a"]


def test_with_relocation_off_a_start_refuses_what_is_in_flight(directory: StateDirectory) -> None:
    put(directory, "0_0", "a", offset=5)
    killed_after(directory, topology("x", "a"), "renamed")

    with pytest.raises(StateMisplaced, match="not finished"):
        prepare_state(directory, topology("x", "a"), automatic=False)


def test_relocation_off_starts_where_all_is_in_place(directory: StateDirectory) -> None:
    put(directory, "1_0", "a")
    put(directory, "1_0", "removed")

    prepare_state(directory, topology("x", "a"), automatic=False)


def test_a_start_moves_and_tells_what_it_left_and_set_aside(
    directory: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    put(directory, "0_0", "a")
    put(directory, "1_0", "a")
    put(directory, "0_0", "removed")

    with caplog.at_level(logging.INFO):
        prepare_state(directory, topology("x", "a"), automatic=True)

    assert places(directory) == ["0_0/removed", "1_0/a"]
    assert "relocated 0_0/rocksdb/a → .set-aside/" in caplog.text
    assert "0_0/rocksdb/removed is left" in caplog.text


def test_the_journal_names_the_one_move_in_flight(directory: StateDirectory) -> None:
    put(directory, "0_0", "a", offset=5)
    killed_after(directory, topology("x", "a"), "journal written")

    journal = json.loads((directory.path / JOURNAL_NAME).read_text())
    assert journal.pop("moment_epoch_ms") > 0
    assert journal == {
        "source": "0_0/rocksdb/a",
        "target": "1_0/rocksdb/a",
        "topic": "app-a-changelog",
        "partition": 0,
        "offset": 5,
    }


@pytest.mark.parametrize("step", [None, "journal written", "line removed", "renamed"])
def test_a_line_is_as_old_after_a_move_as_it_was_before(directory: StateDirectory, step: str | None) -> None:
    put(directory, "0_0", "a", offset=5)
    os.utime(CheckpointFile.of(directory.path / "0_0").path, (1_000, 1_000))
    if step is not None:
        killed_after(directory, topology("x", "a"), step)
    relocate(directory, topology("x", "a"))
    file = CheckpointFile.of(directory.path / "1_0")
    assert (file.read(), file.moment_epoch_ms()) == ({line_of("a"): 5}, 1_000_000.0)
