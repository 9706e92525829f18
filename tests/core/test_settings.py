import re
from pathlib import Path
from typing import Any

import click
import pytest

from forebay.cli import commands
from forebay.errors import SettingError
from forebay.listen_addresses import UnixAddress
from forebay.setting_sources import load_settings, parse_setting
from forebay.settings import SETTINGS, RouterSettings, Setting, Tier, WorkerSettings
from forebay.streams_metadata import HostInfo

WORKER_FLAGS = {"topology": "t.toml", "changelog": "sqlite:///c", "state_dir": "state"}
ROUTER_FLAGS = {"seeds": "one:1"}
BY_NAME = {setting.name: setting for setting in SETTINGS}


def setting(kind: Any, **more: Any) -> Setting:
    return Setting("thing", kind, None, frozenset({"worker"}), "A thing.", **more)


@pytest.mark.parametrize("tier", ["worker", "router"])
def test_flag_beats_environment_file_and_default(tmp_path: Path, tier: Tier) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("drain_ms = 3\n")
    required = WORKER_FLAGS if tier == "worker" else ROUTER_FLAGS
    flag, environment = {**required, "drain_ms": "1"}, {"FOREBAY_DRAIN_MS": "2"}
    no_flag = {**required, "drain_ms": None}

    assert load_settings(tier, flag, environment, config)["drain_ms"] == 1
    assert load_settings(tier, no_flag, environment, config)["drain_ms"] == 2
    assert load_settings(tier, no_flag, {}, config)["drain_ms"] == 3
    assert load_settings(tier, no_flag, {}, None)["drain_ms"] == 5000


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    # Kubernetes gives one where a label that it is to hold is not there.
    assert load_settings("worker", WORKER_FLAGS, {"FOREBAY_RACK": "", "FOREBAY_DRAIN_MS": ""})["rack"] is None


def test_without_a_given_environment_the_processes_own_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DRAIN_MS", "77")
    assert load_settings("worker", WORKER_FLAGS)["drain_ms"] == 77


@pytest.mark.parametrize("missing", sorted(WORKER_FLAGS))
def test_missing_required_setting_is_named(missing: str) -> None:
    """Both its flag and its variable are named."""
    flags = {name: value for name, value in WORKER_FLAGS.items() if name != missing}
    with pytest.raises(SettingError) as caught:
        load_settings("worker", flags, {})
    assert BY_NAME[missing].flag in str(caught.value)
    assert BY_NAME[missing].environment in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "environment", "file", "source"),
    [
        ({"drain_ms": "soon"}, {}, "", "--drain-ms"),
        ({}, {"FOREBAY_DRAIN_MS": "soon"}, "", "FOREBAY_DRAIN_MS"),
        ({}, {}, 'drain_ms = "soon"', "forebay.toml: drain_ms"),
    ],
)
def test_a_bad_value_is_named_with_its_source(
    tmp_path: Path, flags: dict[str, str], environment: dict[str, str], file: str, source: str
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(file)
    with pytest.raises(SettingError) as caught:
        load_settings("router", {**ROUTER_FLAGS, **flags}, environment, config)
    assert source in str(caught.value)
    assert "'soon'" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"drain_ms": "50000"}, "drain_ms is 50000, more than shutdown_timeout_ms, which is 25000"),
        ({"request_timeout_ms": "30001"}, "--request-timeout-ms: 30001 is more than 30000"),
        ({"cors_allow_origins": "foo"}, "'foo' is neither an origin such as https://example.org nor '*'"),
        ({"cors_allow_origins": "https://a.org/path"}, "'https://a.org/path' is neither an origin"),
        ({"tls_key_file": "tls.key"}, "Of tls_certificate_file and tls_key_file there is only one"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings("router", {**ROUTER_FLAGS, **flags}, {})
    assert said in str(caught.value)


def test_a_config_file_can_give_every_kind_of_value(tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(
        'seeds = ["one:1", "[::1]:2"]\nlisten = "0.0.0.0:80"\nallow_anonymous = true\nlog_level = "debug"\n'
        'cors_allow_origins = ["*"]\n'
    )
    loaded = RouterSettings(**load_settings("router", {}, {}, config))
    assert loaded.seeds == (HostInfo("one", 1), HostInfo("::1", 2))
    assert loaded.listen == (HostInfo("0.0.0.0", 80),)
    assert loaded.allow_anonymous is True
    assert loaded.log_level == "debug"
    assert loaded.cors_allow_origins == ("*",)


def test_a_misspelt_setting_in_a_config_file_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("drain_mss = 3\n")
    with pytest.raises(SettingError, match="no setting 'drain_mss'; did you mean 'drain_ms'"):
        load_settings("router", ROUTER_FLAGS, {}, config)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FOREBAY_AUTH_TOKEN_FILE", "did you mean 'FOREBAY_AUTH_TOKENS_FILE'"),
        ("FOREBAY_ZZZZZZ", "see docs/settings.md"),
    ],
)
def test_a_misspelt_variable_is_refused(name: str, said: str) -> None:
    with pytest.raises(SettingError, match=f"{name} is no setting; {said}"):
        load_settings("router", ROUTER_FLAGS, {name: "x"})


@pytest.mark.parametrize(
    "name",
    [
        "FOREBAY_STATE_DIR",
        "FOREBAY_URL",
        "FOREBAY_ROUTER_SERVICE_HOST",
        "FOREBAY_ROUTER_SERVICE_PORT_HTTP",
        "FOREBAY_PORT",
        "FOREBAY_ROUTER_PORT_8080_TCP_ADDR",
    ],
)
def test_unrelated_variables_are_ignored(
    name: str,
) -> None:
    """They belong to the other tier, to commands or to Kubernetes services."""
    assert load_settings("router", ROUTER_FLAGS, {name: "x"}) == load_settings("router", ROUTER_FLAGS, {})


def test_a_number_beyond_what_a_machine_bears_is_refused() -> None:
    with pytest.raises(SettingError, match="--processes: 1000000 is more than 256"):
        load_settings("router", {**ROUTER_FLAGS, "processes": "1000000"}, {})


def test_other_tiers_setting_in_a_file_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("max_in_flight_per_worker = 3\n")
    with pytest.raises(SettingError, match="no setting 'max_in_flight_per_worker'; it is one of a router"):
        load_settings("worker", WORKER_FLAGS, {}, config)


@pytest.mark.parametrize("content", [None, b"a = = 1", b"\xff"])
def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    config = tmp_path / "forebay.toml"
    if content is not None:
        config.write_bytes(content)
    with pytest.raises(SettingError, match=r"forebay\.toml cannot be read"):
        load_settings("router", ROUTER_FLAGS, {}, config)


@pytest.mark.parametrize(
    ("one", "raw", "value"),
    [
        (setting("integer"), "0", 0),
        (setting("integer"), " 12 ", 12),
        (setting("integer", least=-5), "-5", -5),
        (setting("integer"), 7, 7),
        (setting("boolean"), "true", True),
        (setting("boolean"), "False", False),
        (setting("boolean"), True, True),
        (setting("choice", choices=("a", "b")), "b", "b"),
        (setting("names"), "", ()),
        (setting("names"), "a, b,,c ", ("a", "b", "c")),
        (setting("names"), ["a", "b"], ("a", "b")),
        (setting("address"), "[::]:80", HostInfo("::", 80)),
        (setting("addresses"), "a:1, b:2", (HostInfo("a", 1), HostInfo("b", 2))),
        (setting("addresses"), ["a:1"], (HostInfo("a", 1),)),
        (setting("path"), "/var/lib", Path("/var/lib")),
        (setting("text"), "sqlite:///x", "sqlite:///x"),
    ],
)
def test_a_value_is_read_by_the_settings_kind(one: Setting, raw: Any, value: Any) -> None:
    parsed = parse_setting(one, raw, "here")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("one", "raw"),
    [
        (setting("integer"), ""),
        (setting("integer"), "many"),
        (setting("integer"), "-1"),
        (setting("integer"), "1.5"),
        (setting("integer"), "5-"),
        (setting("integer"), "1e3"),
        (setting("integer"), 1.5),
        (setting("integer"), True),
        (setting("integer", least=10), "9"),
        (setting("boolean"), "yes"),
        (setting("boolean"), ""),
        (setting("boolean"), 1),
        (setting("choice", choices=("a", "b")), "c"),
        (setting("choice", choices=("a", "b")), "A"),
        (setting("address"), "localhost"),
        (setting("address"), "localhost:0"),
        (setting("address"), "localhost:99999"),
        (setting("addresses"), ""),
        (setting("addresses"), " , "),
        (setting("addresses"), []),
        (setting("addresses"), "a:1,b"),
    ],
)
def test_value_of_the_wrong_kind_names_its_source(one: Setting, raw: Any) -> None:
    with pytest.raises(SettingError, match=r"^--here: "):
        parse_setting(one, raw, "--here")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "[0:0::0]:1"])
def test_an_address_that_nobody_can_reach_is_not_advertised(address: str) -> None:
    with pytest.raises(SettingError, match=r"advertise is .*others cannot reach"):
        load_settings("worker", {**WORKER_FLAGS, "advertise": address}, {})


@pytest.mark.parametrize("name", ["reads.example.org:8080", "http://reads.example.org", "[::1]", "*.example.org"])
def test_a_host_is_a_name_alone(name: str) -> None:
    with pytest.raises(SettingError, match=re.escape(name)):
        load_settings("router", {**ROUTER_FLAGS, "allowed_hosts": f"good.example.org,{name}"}, {})
    loaded = load_settings("router", {**ROUTER_FLAGS, "allowed_hosts": "good.example.org,*"}, {})
    assert loaded["allowed_hosts"] == ("good.example.org", "*")


TIERS = pytest.mark.parametrize(("tier", "flags"), [("worker", WORKER_FLAGS), ("router", ROUTER_FLAGS)])


@TIERS
def test_a_process_listens_at_several_addresses(tier: Tier, flags: dict[str, str]) -> None:
    listen = load_settings(tier, {**flags, "listen": "unix:/run/r.sock, [::1]:8080"}, {})["listen"]
    assert listen == (UnixAddress(Path("/run/r.sock")), HostInfo("::1", 8080))
    with pytest.raises(SettingError, match=r"listen is 0\.0\.0\.0:1, which other machines may reach"):
        load_settings(tier, {**flags, "listen": "unix:/run/r.sock,0.0.0.0:1"}, {})


@TIERS
@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "127.example.org:1"])
def test_open_listener_requires_tokens_or_consent(tier: Tier, flags: dict[str, str], listen: str) -> None:
    """A process that others can reach needs tokens, an authenticator or `--allow-anonymous`."""
    open_to_all = {**flags, "listen": listen}
    with pytest.raises(SettingError, match=re.escape(listen)) as caught:
        load_settings(tier, open_to_all, {})
    assert "--auth-tokens-file" in str(caught.value)
    assert "--allow-anonymous" in str(caught.value)
    for intended in ({"allow_anonymous": "true"}, {"auth_tokens_file": "tokens"}, {"authenticator": "mine"}):
        assert load_settings(tier, {**open_to_all, **intended}, {})["listen"] == (HostInfo.parse(listen),)
    assert load_settings(tier, open_to_all, {"FOREBAY_ALLOW_ANONYMOUS": "true"})["allow_anonymous"] is True


@TIERS
@pytest.mark.parametrize(
    "listen", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/r.sock", "unix:/r.sock,localhost:1"]
)
def test_on_loopback_everybody_is_this_machines(tier: Tier, flags: dict[str, str], listen: str) -> None:
    assert load_settings(tier, {**flags, "listen": listen}, {})["allow_anonymous"] is False


@pytest.mark.parametrize(
    ("given", "value"),
    [([], None), (["--allow-anonymous"], "true"), (["--allow-anonymous", "false"], "false")],
)
def test_a_flag_that_is_given_alone_means_true(given: list[str], value: str | None) -> None:
    command = commands.get_command(click.Context(commands), "router")
    assert command is not None
    made = command.make_context("router", ["--seeds", "one:1", *given, "--log-level", "debug"])
    assert (made.params["allow_anonymous"], made.params["log_level"]) == (value, "debug")


def test_a_name_that_dns_cannot_have_is_refused() -> None:
    with pytest.raises(SettingError, match=r"--advertise: 'pod-1\.\.svc:80' has a host that is no name"):
        load_settings("worker", {**WORKER_FLAGS, "advertise": "pod-1..svc:80"}, {})


def test_a_tier_starts_with_what_is_required_alone() -> None:
    worker = WorkerSettings(**load_settings("worker", WORKER_FLAGS, {}))
    assert worker.topology == Path("t.toml")
    assert worker.listen == (HostInfo("127.0.0.1", 8080),)
    assert worker.advertise is None
    assert worker.group is None
    router = RouterSettings(**load_settings("router", ROUTER_FLAGS, {}))
    assert router.seeds == (HostInfo("one", 1),)
    assert router.cors_allow_origins == ()


@pytest.mark.parametrize("item", SETTINGS, ids=lambda item: item.name)
def test_every_setting_explains_itself_and_is_used_by_a_tier(item: Setting) -> None:
    assert item.help.strip().endswith(".")
    assert item.tiers
    assert item.flag == "--" + item.name.replace("_", "-")
    assert item.environment == "FOREBAY_" + item.name.upper()
    assert not item.required or item.default is None
    assert (item.kind == "choice") == bool(item.choices)
    if item.default is not None:
        parse_setting(item, item.default, "default")


@pytest.mark.parametrize("named", ["name", "flag", "environment"])
def test_no_two_settings_share_a_name(named: str) -> None:
    taken = [getattr(item, named) for item in SETTINGS]
    assert len(taken) == len(set(taken))


def test_a_config_file_may_have_a_byte_order_mark(tmp_path):
    config = tmp_path / "router.toml"
    config.write_text('seeds = "127.0.0.1:1"\n', encoding="utf-8-sig")
    assert load_settings("router", {}, {}, config)["seeds"] == (HostInfo("127.0.0.1", 1),)


def test_a_home_directory_is_found_in_variables_too(monkeypatch):
    """On a command line the shell expands it."""
    monkeypatch.setenv("HOME", "/home/ann")
    environment = {"FOREBAY_SEEDS": "127.0.0.1:1", "FOREBAY_AUTH_TOKENS_FILE": "~/tokens"}
    assert load_settings("router", {}, environment)["auth_tokens_file"] == Path("/home/ann/tokens")


@pytest.mark.parametrize("name", commands.list_commands(click.Context(commands)))
def test_help_fits_a_terminal_of_ascii(name: str) -> None:
    parent = click.Context(commands)
    command = commands.get_command(parent, name)
    assert command is not None
    context = click.Context(command, parent, name)
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    for one in (command, *inner):
        assert one.get_help(context).isascii()
