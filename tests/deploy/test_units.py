"""The systemd units start what is there, confined."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from forebay_tap.command import spark
from tests.support.command_lines import settings_of

ROOT = Path(__file__).parents[2]
UNITS = {
    path.stem: re.findall(r"^(\w+)=(.+)$", path.read_text(), re.M)
    for path in sorted((ROOT / "deploy").glob("*.service"))
}


TIERS = ("forebay-router", "forebay-worker")


def test_the_units_are_those_of_the_tiers_and_of_the_tap():
    assert {*TIERS, "forebay-tap"} == UNITS.keys()


def test_the_unit_of_the_tap_starts_it():
    unit = dict(UNITS["forebay-tap"])
    program, group, name, *options = shlex.split(unit["ExecStart"])
    assert (Path(program).name, group) == ("forebay", "spark")
    command = spark.get_command(click.Context(spark), name)
    assert command is not None
    given = command.make_context(name, options).params
    assert given["checkpoint"] == "/var/lib/spark/checkpoints/orders"
    environment = dict(value.split("=", 1) for key, value in UNITS["forebay-tap"] if key == "Environment")
    assert environment.keys() == {"FOREBAY_TOPOLOGY", "FOREBAY_CHANGELOG"}
    # It waits for what a batch still writes.
    assert int(unit["TimeoutStopSec"]) > 60


@pytest.mark.parametrize("name", TIERS)
def test_a_unit_is_started_and_ended_as_the_code_has_it(name):
    unit = dict(UNITS[name])
    environment = dict(value.split("=", 1) for key, value in UNITS[name] if key == "Environment")
    program, *command_line = shlex.split(unit["ExecStart"])
    settings = settings_of(command_line, environment)
    assert Path(program).name == "forebay"
    # An option would beat what `systemctl edit` adds to the environment.
    assert len(command_line) == 1
    assert f"forebay-{command_line[0]}" == name
    assert int(unit["TimeoutStopSec"]) * 1000 > settings["shutdown_timeout_ms"]
    assert "LimitNOFILE" in unit
    # All of the machine is read-only but what is named.
    assert unit["ProtectSystem"] == "strict"
    if command_line[0] == "worker":
        own = Path("/var/lib", unit["StateDirectory"])
        assert settings["state_dir"].is_relative_to(own)
        assert Path(settings["changelog"].removeprefix("sqlite://")).is_relative_to(own)


def test_the_units_are_hardened_alike():
    hardening = [
        [
            (key, value)
            for key, value in unit
            if key.startswith(("Protect", "Private", "Restrict", "NoNew", "Lock"))
        ]
        for unit in UNITS.values()
    ]
    assert len(hardening) == len(UNITS)
    assert all(unit == hardening[0] for unit in hardening)


def test_systemd_takes_the_units():
    systemd_analyze = shutil.which("systemd-analyze")
    if systemd_analyze is None:
        pytest.skip("systemd-analyze is not installed")
    files = [ROOT / "deploy" / f"{name}.service" for name in UNITS]
    done = subprocess.run(
        [systemd_analyze, "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    # That forebay is not installed in its place is no fault of the units'.
    said = [line for line in done.stderr.splitlines() if "forebay" in line and "is not executable" not in line]
    assert said == []
