"""Files and directories of another user: one line that names the user to run as."""

import os
import shutil
import tomllib
from pathlib import Path

import pytest

from forebay.file_access import denial
from forebay.task_ids import TopicPartition
from forebay.topology_file import parse_topology
from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.support.cluster import TOPOLOGY
from tests.support.commands import forebay_without_rights

NOBODY = 65534
OWNER = "Run as nobody, the user that owns it." if os.geteuid() == 0 else "Change it with chmod."


def close(path: Path) -> None:
    """Take it from this user."""
    if os.geteuid() == 0:
        shutil.chown(path, NOBODY)
    path.chmod(0o700 if os.geteuid() == 0 else 0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A topology, and a changelog and a state directory that this user may not enter."""
    directory = tmp_path_factory.mktemp("denied")
    (directory / "topology.toml").write_text(TOPOLOGY)
    SqliteChangelog(directory / "log")
    (directory / "state" / "test").mkdir(parents=True)
    closed = [directory / "log", directory / "state"]
    for path in closed:
        close(path)
    yield directory
    for path in closed:
        path.chmod(0o700)


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("changelog ls", "log"),
        ("topology apply", "log"),
        ("worker --state-dir {directory}/state", "log"),
        ("worker --changelog sqlite://{directory}/other --state-dir {directory}/state", "state"),
        ("state ls --state-dir {directory}/state", "state"),
    ],
)
def test_directory_of_another_user_names_its_owner(directory, command, closed):
    words = command.format(directory=directory).split()
    given = ["--topology", directory / "topology.toml"]
    if words[0] != "state" and "--changelog" not in words:
        given += ["--changelog", f"sqlite://{directory}/log"]
    done = forebay_without_rights(*words, *given)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2
    assert str(directory / closed) in line
    assert line.endswith(OWNER)


@pytest.mark.parametrize(
    "command",
    [
        "topology show --topology {file}",
        "worker --config {file}",
        "query s k --token-file {file}",
        "changelog tail counts --partition 0 --topology {topology} --changelog sqlite://{log}",
    ],
)
def test_file_of_another_user_names_its_owner(tmp_path, command):
    topology = tmp_path / "topology.toml"
    topology.write_text(TOPOLOGY)
    log = SqliteChangelog(tmp_path / "log")
    log.ensure(parse_topology(tomllib.loads(TOPOLOGY)).stores["counts"])
    file = tmp_path / "file"
    file.touch()
    for path in (file, Path(log.path(TopicPartition("test-counts-changelog", 0)))):
        close(path)
    done = forebay_without_rights(*command.format(file=file, topology=topology, log=log.directory).split())
    [line] = done.stderr.splitlines()
    assert done.returncode == 2
    assert "cannot be read: it " in line
    assert line.endswith(OWNER)


def test_nothing_is_denied_where_a_directory_may_be_made(tmp_path: Path):
    assert denial(tmp_path / "a" / "b") is None
    assert denial(tmp_path) is None
