"""The schedule is the seed's, and every kind of fault comes, alone and together with others."""

import itertools
from pathlib import Path

import pytest

from forebay.topology import Topology, load_topology
from tests.chaos.deployment import Deployment
from tests.chaos.faults import Faults
from tests.chaos.run import TOPOLOGY
from tests.chaos.schedule import MOST_TOGETHER, episodes, kinds_for


@pytest.mark.parametrize("log", ["sqlite", "kafka"])
def test_every_kind_comes_alone_before_any_comes_again(log):
    kinds = kinds_for(log)
    planned = list(itertools.islice(episodes(3, kinds), 2 * len(kinds)))
    assert sorted(fault.kind for episode in planned[::2] for fault in episode) == sorted(kinds)
    assert {len(episode) for episode in planned[::2]} == {1}
    together = [len(episode) for episode in planned[1::2]]
    assert max(together) == MOST_TOGETHER
    assert {fault.kind for episode in planned[1::2] for fault in episode} == set(kinds)


@pytest.mark.parametrize("log", ["sqlite", "kafka"])
def test_single_processes_are_killed_where_a_worker_has_several(log):
    assert "kill-process" not in kinds_for(log)
    planned = itertools.islice(episodes(3, kinds_for(log, worker_processes=2)), 20)
    assert [fault for episode in planned for fault in episode if fault.kind == "kill-process"]


def test_a_seed_repeats_its_schedule_and_another_does_not():
    first, again, other = (list(itertools.islice(episodes(seed, kinds_for("sqlite")), 20)) for seed in (5, 5, 6))
    assert first == again != other


def test_every_planned_kind_can_be_injected(tmp_path):
    deployment = Deployment(tmp_path, load_topology_of(tmp_path), "sqlite:///log", lambda _: None)
    try:
        assert set(Faults(deployment, tmp_path).injuries) == {*kinds_for("sqlite", 2), *kinds_for("kafka", 2)}
    finally:
        deployment.close()


def load_topology_of(directory: Path) -> Topology:
    (directory / "topology.toml").write_text(TOPOLOGY)
    return load_topology(directory / "topology.toml")
