"""What an installation without any extra can do, and what it says about the rest."""

import json

import pytest

from tests.support.bare import run_bare

FOREBAY = "from forebay.cli import main\nmain()"


def test_client_and_its_commands_need_no_extra(cluster):
    cluster.put("counts", {b"a": b"1"})
    host = cluster.start_worker()
    cluster.wait_settled(host, replicas=1)
    url = f"http://{host}"
    read = "from forebay.client import Client\nprint(Client(sys.argv[1]).get('counts', 'a').value)"
    assert run_bare(read, url).stdout == "1\n"
    done = run_bare(FOREBAY, "query", "--url", url, "counts", "a", "--json")
    assert json.loads(done.stdout)["value"] == 1
    assert host in run_bare(FOREBAY, "status", "--url", url, "--json").stdout
    opened = ("--topology", cluster.topology_path, "--changelog", cluster.changelog.url)
    assert "counts" in run_bare(FOREBAY, "changelog", "ls", *opened).stdout


@pytest.mark.parametrize(
    ("command", "extra"),
    [("worker", "worker"), ("router", "router"), ("dev", "worker"), ("state", "worker"), ("spark", "tap")],
)
def test_a_command_without_its_extra_names_it(command, extra):
    done = run_bare(FOREBAY, command, "--some-flag", "value")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"forebay: forebay {command} needs the {extra} extra: pip install 'forebay[{extra}]'"
    )


def test_help_lists_every_command_without_extras():
    done = run_bare(FOREBAY, "--help")
    assert "forebay router needs the router extra, which is not installed." in done.stdout
    assert "topology   Check a topology" in done.stdout


def test_a_package_missing_at_a_later_import_is_named_too(tmp_path):
    """With the extra of routers, the worker's command loads. Its store does not."""
    options = (
        "--topology",
        tmp_path / "t.toml",
        "--changelog",
        f"sqlite://{tmp_path}/log",
        "--state-dir",
        tmp_path,
    )
    done = run_bare(FOREBAY, "worker", *options, extra="router")
    assert done.returncode == 2
    assert "forebay worker needs the worker extra" in done.stderr
    assert "rocksdict is missing" in done.stderr


def test_a_changelog_without_its_extra_names_it(cluster):
    opened = ("--topology", cluster.topology_path, "--changelog", "kafka://127.0.0.1:1")
    done = run_bare(FOREBAY, "changelog", "ls", *opened)
    assert done.returncode == 2
    assert "A kafka:// changelog needs the kafka extra: pip install 'forebay[kafka]'" in done.stderr
