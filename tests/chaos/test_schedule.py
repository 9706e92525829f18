"""The schedule is the seed's, and every kind of fault comes, alone and together with others."""

import itertools
from unittest.mock import Mock

import pytest

from tests.chaos.deployment import Deployment
from tests.chaos.faults import Faults
from tests.chaos.log_cuts import LogCuts
from tests.chaos.log_faults import BrokerFaults, SqliteLogFaults
from tests.chaos.misplaced_keys import MisplacedKeys
from tests.chaos.proxy import Proxies
from tests.chaos.schedule import MAX_TOGETHER, OF_KAFKA_ALONE, episodes, kinds_for
from tests.chaos.topologies import TopologyFile
from tests.chaos.writer import Writer


@pytest.mark.parametrize("log", ["sqlite", "kafka"])
def test_every_kind_comes_alone_before_any_comes_again(log):
    kinds = kinds_for(log)
    planned = list(itertools.islice(episodes(3, kinds), 2 * len(kinds)))
    assert sorted(fault.kind for episode in planned[::2] for fault in episode) == sorted(kinds)
    assert {len(episode) for episode in planned[::2]} == {1}
    together = [len(episode) for episode in planned[1::2]]
    assert max(together) == MAX_TOGETHER
    assert {fault.kind for episode in planned[1::2] for fault in episode} == set(kinds) - {*OF_KAFKA_ALONE}


@pytest.mark.parametrize("log", ["sqlite", "kafka"])
def test_single_processes_are_killed_where_a_worker_has_several(log):
    assert "kill-process" not in kinds_for(log)
    planned = itertools.islice(episodes(3, kinds_for(log, worker_processes=2)), 20)
    assert [fault for episode in planned for fault in episode if fault.kind == "kill-process"]


def test_a_seed_repeats_its_schedule_and_another_does_not():
    first, again, other = (list(itertools.islice(episodes(seed, kinds_for("sqlite")), 20)) for seed in (5, 5, 6))
    assert first == again != other


def test_every_planned_kind_can_be_injected(tmp_path):
    proxies = Proxies()
    deployment = Deployment(
        tmp_path, TopologyFile(tmp_path / "topology.toml"), "sqlite:///log", lambda _: None, proxies
    )
    of_logs = SqliteLogFaults(deployment.topology, tmp_path).injuries | BrokerFaults([], proxies).injuries
    writer = Writer(deployment.topology, str, Mock(), 1, Mock())
    of_logs |= LogCuts(deployment, writer, Mock(), Mock(), Mock()).injuries
    of_logs |= MisplacedKeys(deployment, writer, Mock(), Mock(), Mock()).injuries
    try:
        assert set(Faults(deployment, of_logs).injuries) == {*kinds_for("sqlite", 2), *kinds_for("kafka", 2)}
    finally:
        deployment.close()
        proxies.close()


def test_a_log_is_cut_where_one_machine_has_its_files():
    assert "cut-log" in kinds_for("kafka")
    assert "cut-log" not in kinds_for("kafka", brokers=3)


def test_what_needs_disks_is_not_planned_without():
    assert {"fill-disk", "read-only-disk", "slow-disk"}.isdisjoint(kinds_for("sqlite", disks=False))
    assert "slow-disk" not in kinds_for("sqlite", slow_disks=False)


@pytest.mark.parametrize("log", ["sqlite", "kafka"])
def test_every_two_kinds_come_together(log):
    """In two hundred runs of twenty episodes, each of another seed."""
    kinds = kinds_for(log)
    together: set[tuple[str, ...]] = set()
    for seed in range(200):
        for episode in itertools.islice(episodes(seed, kinds), 20):
            together |= {*itertools.combinations(sorted({fault.kind for fault in episode}), 2)}
    assert together == {*itertools.combinations(sorted({*kinds} - {*OF_KAFKA_ALONE}), 2)}
