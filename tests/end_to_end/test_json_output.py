"""``--json`` of every command, as docs/commands.md says."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from forebay.cli import commands
from tests.support.cluster import Cluster, running_cluster
from tests.support.commands import forebay
from tests.support.running_query import RunningQuery
from tests.test_docs import DOCS, leaves, section

TOPOLOGY = """
application_id = "test"

[[subtopology]]
name = "tapped"
partitions = 3

[[subtopology.store]]
name = "tapped"

[subtopology.store.spark_state]
fields = [{ name = "count", position = 0, function = "count" }, { name = "sum", position = 1, function = "sum" }]
"""
RUN_UNTIL_STOPPED = {"dev", "worker", "router", "spark follow"}
OF_THE_SERVER = {"query", "status"}
VARIED = {"changelog tail"}
"""The members of their documents depend on what is shown."""
MEMBERS = dict(
    re.findall(
        r"^\| `forebay ([a-z -]+)` \| (.+) \|$",
        section((DOCS / "commands.md").read_text(), "## For programs"),
        re.M,
    )
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        yield cluster


def test_every_command_with_a_result_documents_json():
    flagged = {words for words, command in leaves(commands) if "--json" in options(command)}
    assert flagged == {words for words, _ in leaves(commands)} - RUN_UNTIL_STOPPED
    assert MEMBERS.keys() == flagged


def options(command: click.Command) -> list[str]:
    return [option for parameter in command.params for option in parameter.opts]


def test_each_document_has_the_members_that_are_documented(cluster, spark_4_0, tmp_path):
    query = RunningQuery(spark_4_0.path("aggregation-changelog"), tmp_path / "checkpoint")
    query.end_all()
    topology = ("--topology", str(cluster.topology_path))
    log = (*topology, "--changelog", cluster.changelog.url)
    state = (*topology, "--state-dir", str(cluster.directory / "state-0"))
    cluster.put("tapped", {b"a": b"1"}, writer="gone")
    worker = cluster.start_worker()
    url = ("--url", f"http://{worker}")
    assert printed("query", *url, "tapped", "a")["value"] == 1
    assert {row["store"] for row in printed("status", *url)["lags"]} == {"tapped"}
    cluster.kill(worker, signal.SIGTERM)
    move = TOPOLOGY.replace("[[subtopology]]", OTHER + "[[subtopology]]", 1)
    documents = {
        "topology show": printed("topology show", *topology),
        "topology apply": printed("topology apply", *log),
        "changelog ls": printed("changelog ls", *log),
        "changelog stat": printed("changelog stat", *log),
        "changelog tail": printed("changelog tail", *log, "tapped", "--partition", "0", "--last", "1"),
        "changelog retire-writer": printed("changelog retire-writer", *log, "tapped", "gone"),
        "changelog erase": printed("changelog erase", *log, "tapped", "nobody"),
        "changelog compact": printed("changelog compact", *log, "tapped"),
        "changelog reset": printed("changelog reset", *log, "tapped", "--yes"),
        "spark describe": printed("spark describe", str(query.path)),
        "spark bootstrap": printed("spark bootstrap", *log, "--checkpoint", str(query.path)),
    }
    (tmp_path / "new.toml").write_text(move)
    documents["topology diff"] = printed("topology diff", str(cluster.topology_path), str(tmp_path / "new.toml"))
    cluster.topology_path.write_text(move)
    documents |= {
        "state ls": printed("state ls", *state),
        "state relocate": printed("state relocate", *state),
        "state rm": printed("state rm", *state, "1_0"),
    }
    assert documents.keys() == MEMBERS.keys() - OF_THE_SERVER
    for words, document in documents.items():
        assert named(document) <= set(re.findall(r"`(\w+)`", MEMBERS[words])), words
        assert words in VARIED or document.keys() == top_level(MEMBERS[words]), words
    assert [store["place"] for store in documents["state ls"]["stores"]] == ["elsewhere"] * 3
    assert [move["target"] for move in documents["state relocate"]["moves"]] == ["1_0", "1_1", "1_2"]
    assert documents["state rm"]["removed"] == [{"task": "1_0", "store": "tapped"}]


def on_terminal(*command: object) -> tuple[Any, str]:
    """The document that a command prints, and what a terminal gets of its standard error."""
    master, slave = pty.openpty()
    arguments = [sys.executable, "-m", "forebay", *map(str, command), "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=slave) as running:
        os.close(slave)
        assert running.stdout is not None
        document = json.load(running.stdout)
    shown = b""
    # Once all is read that a terminal had from a process that has ended, reading it is an error.
    with contextlib.suppress(OSError):
        while some := os.read(master, 65_536):
            shown += some
    os.close(master)
    return document, shown.decode()


def test_long_work_shows_a_bar_on_a_terminal_and_nowhere_else(cluster, spark_4_0, tmp_path):
    log = ("--topology", cluster.topology_path, "--changelog", cluster.changelog.url)
    cluster.put("tapped", {b"a": b"1"})
    assert forebay("changelog", "compact", "tapped", *log).stderr == ""
    document, shown = on_terminal("changelog", "compact", "tapped", *log)
    assert document["store"] == "tapped"
    assert "compacting tapped" in shown
    assert "3/3" in shown
    query = RunningQuery(spark_4_0.path("aggregation-changelog"), tmp_path / "checkpoint")
    last = query.end_all()
    document, shown = on_terminal("spark", "bootstrap", *log, "--checkpoint", query.path, "--take-over")
    assert document["batch_id"] == last
    assert "records written" in shown
    assert re.search(r"[1-9]\d*/\?", shown)
    assert "INFO tapped: " in shown


def test_a_shell_completes_commands_and_flags():
    def completions(words: str) -> list[str]:
        environment = {"_FOREBAY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
        outcome = CliRunner().invoke(commands, [], env=environment, prog_name="forebay")
        return [line.partition(",")[2] for line in outcome.stdout.splitlines()]

    assert {"tail", "stat"} <= set(completions("forebay changelog "))
    assert "--json" in completions("forebay status --j")


OTHER = """[[subtopology]]
name = "other"
partitions = 1

[[subtopology.store]]
name = "other"

"""


def printed(words: str, *arguments: str, statuses: tuple[int, ...] = (0,)) -> Any:
    """The document that a command prints, and nothing else."""
    outcome = CliRunner().invoke(commands, [*words.split(), *arguments, "--json"], catch_exceptions=False)
    assert outcome.exit_code in statuses, outcome.output
    return json.loads(outcome.stdout)


def named(document: dict[str, Any]) -> set[str]:
    """The members of a document, and of the items of its lists."""
    items = [item for value in document.values() if isinstance(value, list) for item in value]
    return set(document).union(*(item for item in items if isinstance(item, dict)))


def top_level(documented: str) -> set[str]:
    """The members before and between the lists' items."""
    without_notes = re.sub(r" \([^)]*\)", "", documented)
    return set(re.findall(r"`(\w+)`", re.sub(r":[^.]*", "", without_notes)))
