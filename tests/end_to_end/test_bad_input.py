"""Unusable input to a command gives the operator one clear line, never a stack trace."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from forebay.errors import TopicMissing
from forebay.topology_file import load_topology
from tests.support.cluster import Cluster, free_port, wait_until
from tests.support.commands import forebay


def refused(done: subprocess.CompletedProcess[str], status: int = 2) -> str:
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    return done.stderr


def worker_arguments(cluster: Cluster, **changed: object) -> list[object]:
    given: dict[str, object] = {
        "topology": cluster.topology_path,
        "changelog": cluster.changelog.url,
        "state-dir": cluster.directory / "state",
        "listen": f"127.0.0.1:{free_port()}",
        **changed,
    }
    return ["worker", *(part for name, value in given.items() for part in (f"--{name}", value))]


def test_a_missing_setting_is_named_with_its_flag_and_variable():
    message = refused(forebay("worker"))
    assert "--topology is missing" in message
    assert "FOREBAY_TOPOLOGY" in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-1"], "--num-standby-replicas: '-1' is not a whole number of at least 0."),
        ([], "Option '--num-standby-replicas' requires an argument."),
    ],
)
def test_a_negative_or_absent_number_is_refused_with_its_flag(given, message):
    required = ("--topology", "t", "--changelog", "c", "--state-dir", "s")
    assert message in refused(forebay("worker", *required, "--num-standby-replicas", *given))


def test_worker_config_serves_changelog_and_state_commands(cluster, tmp_path):
    cluster.put("counts", {b"k": b"1"})
    state_dir = tmp_path / "state"
    config = tmp_path / "worker.toml"
    paths = {"topology": cluster.topology_path, "changelog": cluster.changelog.url, "state_dir": state_dir}
    config.write_text(
        "".join(f'{name} = "{path}"\n' for name, path in paths.items()) + "num_standby_replicas = 2\n"
    )
    (state_dir / cluster.topology.application_id).mkdir(parents=True)
    for command in ("topology show", "topology apply", "changelog ls", "state ls"):
        done = forebay(*command.split(), "--config", config)
        assert (done.returncode, done.stderr) == (0, ""), command
    config.write_text(config.read_text() + "num_standby = 2\n")
    for command in ("changelog ls", "state ls"):
        assert "there is no setting 'num_standby'" in refused(forebay(*command.split(), "--config", config))
    assert "--state-dir is missing" in refused(forebay("state", "ls", "--topology", cluster.topology_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("application_id = ", "not valid TOML"),
        ('application_id = "a"', "at least one [[subtopology]]"),
        (
            'application_id = "a"\n[[subtopology]]\nname = "s"\npartitions = 0\n[[subtopology.store]]\nname = "x"',
            "'partitions', a whole number of at least 1",
        ),
    ],
)
def test_an_unreadable_topology(cluster, tmp_path, text, expected):
    bad = tmp_path / "bad.toml"
    bad.write_text(text)
    message = refused(forebay(*worker_arguments(cluster, topology=bad)))
    assert "bad.toml" in message
    assert expected in message


@pytest.mark.parametrize(
    "command",
    [
        ["topology", "show", "--topology"],
        ["router", "--config"],
        ["router", "--seeds", "127.0.0.1:1", "--listen", "127.0.0.1:9", "--auth-tokens-file"],
        ["query", "s", "k", "--token-file"],
    ],
)
def test_a_missing_file_is_named_once(command):
    message = refused(forebay(*command, "/nowhere/file"))
    assert message.count("/nowhere/file") == 1
    assert message.endswith(": No such file or directory.\n")


def test_a_port_in_use(cluster):
    address = cluster.start_worker()
    message = refused(forebay(*worker_arguments(cluster, listen=address)), status=1)
    assert f"Cannot listen on {address}" in message
    assert "--listen" in message


def test_an_address_of_no_interface(cluster):
    listen = {"listen": "192.0.2.1:80", "allow-anonymous": "true"}
    assert "Cannot listen on 192.0.2.1:80" in refused(forebay(*worker_arguments(cluster, **listen)))


def test_a_state_directory_of_another_process(cluster):
    address = cluster.start_worker()
    message = refused(
        forebay(*worker_arguments(cluster, **{"state-dir": cluster.directory / "state-0"})), status=1
    )
    assert "in use by process" in message
    assert str(cluster.workers[address].pid) in message


def test_an_advertised_address_of_another_worker(cluster):
    address = cluster.start_worker()
    message = refused(forebay(*worker_arguments(cluster, advertise=address)), status=1)
    assert f"The address {address} is advertised by another live worker" in message


def test_a_worker_that_is_refused_leaves_its_state_in_order(cluster):
    state = cluster.directory / "state-1"
    one, other = cluster.start_workers(2)
    cluster.kill(other, signal.SIGTERM)
    cluster.workers[other].wait(15)
    record = next(state.rglob(".offsets.json"))
    record.unlink()
    refused(forebay(*worker_arguments(cluster, advertise=one, **{"state-dir": state})), status=1)
    assert record.exists()


def test_a_log_of_another_partition_count(cluster, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(cluster.topology_text.replace("partitions = 4", "partitions = 8"))
    message = refused(forebay(*worker_arguments(cluster, topology=other)))
    assert "has 4 partitions, the topology has 8" in message


def test_a_state_directory_that_cannot_be_made(cluster, tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert "cannot be written" in refused(forebay(*worker_arguments(cluster, **{"state-dir": file / "state"})))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://localhost", "kafka:// (with the extra kafka), sqlite://"),
        ("sqlite://relative/path", "is not of the form sqlite:///DIR"),
        ("nonsense", "is of no kind that is installed"),
    ],
)
def test_a_changelog_url_of_an_unknown_form(cluster, url, message):
    assert message in refused(forebay(*worker_arguments(cluster, changelog=url)))


def test_a_group_of_another_application(cluster, tmp_path):
    cluster.start_worker()
    other = tmp_path / "other.toml"
    other.write_text(cluster.topology_text.replace('application_id = "test"', 'application_id = "other"'))
    message = refused(forebay(*worker_arguments(cluster, topology=other)))
    assert "belongs to application 'test'" in message
    for spec in load_topology(other).stores.values():
        with pytest.raises(TopicMissing):
            cluster.changelog.partitions(spec.topic)


def test_brokers_that_do_not_answer_are_one_line_with_a_remedy(cluster):
    log = ["--topology", cluster.topology_path, "--changelog", f"kafka://127.0.0.1:{free_port()}"]
    [line] = refused(forebay("changelog", "ls", *log), status=1).splitlines()
    assert line.startswith("forebay: No broker of kafka://127.0.0.1:")
    assert line.endswith(". Start the brokers, or correct the URL and its properties.")


def test_a_router_without_seeds():
    assert "--seeds is missing" in refused(forebay("router"))


def test_a_query_where_nothing_answers():
    message = refused(forebay("query", "s", "k", "--url", f"http://127.0.0.1:{free_port()}"), status=1)
    assert "Nothing answers at" in message


@pytest.mark.parametrize("key", ["-5", "--limt"])
def test_a_key_may_begin_with_a_dash(key):
    message = refused(forebay("query", "--url", f"http://127.0.0.1:{free_port()}", "--", "s", key), status=1)
    assert "Nothing answers at" in message


def test_a_query_whose_url_lacks_its_scheme():
    message = refused(forebay("query", "s", "k", "--url", "127.0.0.1:8080"))
    assert (
        "such as http://127.0.0.1:8080 or unix:/run/forebay.sock: a URL begins with http:// or https://" in message
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--folow", "s"], "No such option '--folow'"),
        (["s", "-5"], "A key that begins with a dash follows a bare --"),
        (["s", "--windws"], "Did you mean '--windows'?"),
        (["s", "k", "--max-age", "1"], "'--max-age-ms'"),
        (["s", "--limt=5"], "'--limit'"),
        (["--windows", "--follow", "s", "k"], "leave out either --follow or --windows"),
        (["--versions", "--as-of", "0", "s", "k"], "leave out either --as-of or --versions"),
        (["--sessions", "s", ""], "no path can contain it"),
        (["--sessions", "--versions", "s", "k"], "leave out either --sessions or --versions"),
        (["--follow", "s"], "--follow needs a key"),
        (["--versions", "s"], "--versions needs a key"),
        (["--as-of", "0", "s"], "--as-of needs a key"),
        (["--limit", "3", "s", "k"], "leave out either --limit or the key"),
        (["--prefix", "a", "--windows", "s"], "leave out either --prefix or --windows"),
    ],
)
def test_a_query_that_cannot_be(arguments, complaint):
    assert complaint in refused(forebay("query", *arguments))


@pytest.mark.parametrize(("url", "status"), [("http://[::1", 2), ("127.0.0.1:1", 2), ("http://127.0.0.1:1", 1)])
@pytest.mark.parametrize("command", [["query", "s", "k"], ["query", "--follow", "s", "k"], ["status"]])
def test_what_is_no_address_of_a_server_is_named(url, status, command):
    assert url in refused(forebay(*command, "--url", url), status)


@pytest.mark.parametrize("command", [["query", "s", "k"], ["query", "--windows", "s", "k"], ["status"]])
def test_unrelated_http_server_is_named_by_its_status(tmp_path, command):
    """A command that meets neither a router nor a worker names the address and the status."""
    (tmp_path / "index.html").write_text("<h1>Sign in</h1>")
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    other = subprocess.Popen(
        [sys.executable, "-m", "http.server", port, "--bind", host], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: "answers 404" in forebay("status", "--url", f"http://{address}").stderr, "any answer")
        message = refused(forebay(*command, "--url", f"http://{address}"))
    finally:
        other.kill()
        other.wait()
    assert f"http://{address} answers 404" in message


@pytest.mark.parametrize(
    "flags", [["--watch", "--check"], ["--watch", "--json"], ["--max-age-ms", "5"], ["--standbys", "1"]]
)
def test_flags_of_status_that_do_not_go_together_are_named(flags):
    message = refused(forebay("status", *flags))
    assert ("--watch" if "--watch" in flags else "--check") in message


def test_a_wildcard_address_is_warned_of(cluster, tmp_path):
    log = Path(cluster.directory / "state-0.log")
    port = free_port()
    cluster.start_worker(f"0.0.0.0:{port}", "--allow-anonymous", ready=False)
    cluster.wait_ready(f"0.0.0.0:{port}")
    assert "requests are not authenticated" in log.read_text()
    status = httpx.get(f"http://127.0.0.1:{port}/v1/status").json()
    assert not status["host"].startswith("localhost")
    assert f"advertises the machine's name, {status['host']}: " in log.read_text()


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [("> /dev/full", 1, "The output cannot be written: No space left on device"), (">&-", 0, "")],
)
def test_an_output_that_takes_nothing(cluster, output, status, said):
    show = f'"{sys.executable}" -m forebay topology show --topology "{cluster.topology_path}" {output}'
    done = subprocess.run(["sh", "-c", show], stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)
    assert said in done.stderr


def test_a_compaction_lag_below_nothing(cluster):
    log = ["--topology", cluster.topology_path, "--changelog", cluster.changelog.url]
    message = refused(forebay("changelog", "compact", "counts", *log, "--min-compaction-lag-ms", "-5"))
    assert "-5 is not in the range" in message
