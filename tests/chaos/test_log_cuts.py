"""What is put in the place of a log has lost its newest records, and its writer goes on in another history."""

import threading
from contextlib import nullcontext
from unittest.mock import Mock

from forebay.task_ids import TopicPartition
from forebay.topology_file import load_topology
from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.chaos.log_cuts import LogCuts, SqliteLogFiles
from tests.chaos.topologies import TopologyFile
from tests.chaos.writer import SqliteWriter, Writer


def test_other_records_take_the_place_of_those_that_a_cut_has_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.chaos.log_cuts.LOST_S", 0)
    topology = load_topology(TopologyFile(tmp_path / "topology.toml").path)
    spec = next(iter(topology.stores.values()))
    changelog, cuts = SqliteChangelog(tmp_path / "log"), []
    changelog.ensure(spec)
    log = SqliteWriter(changelog)
    writer = Writer(topology, str, log, 1, Mock())
    files = SqliteLogFiles(tmp_path / "log", threading.Lock(), threading.Lock())

    def write() -> list[int]:
        records = log.write(spec, {0: [(("c001",), 1), (("c002",), 2)]}, 0.0)
        writer.ends[spec.name][0] = records[-1].offset + 1
        return [record.offset for record in records]

    def stopping() -> nullcontext[None]:
        assert not files.breaking.acquire(blocking=False)
        lost.extend(write())
        return nullcontext()

    first, lost = write(), []
    deployment = Mock(topology=topology, without_workers=stopping)
    with LogCuts(deployment, writer, files, cuts.append).injuries["cut-log"](0) as target:
        before = changelog.proofs(spec.topic)[0]
        tp = TopicPartition(spec.topic, 0)
        assert target == str(tp)
        assert changelog.end_offsets([tp])[tp] == lost[0] == cuts[0].end == writer.ends[spec.name][0]
        assert write() == lost != first
    assert (cuts[0].store, cuts[0].partition) == (spec.name, 0)
    after = changelog.proofs(spec.topic)[0]
    assert (after[0], after[1] > before[1]) == (before[0], True)
    assert files.breaking.acquire(blocking=False)
