"""Every command and variable in the compose file and the Dockerfile is one that the code knows."""

import re
from pathlib import Path

import click
import pytest
import yaml

from examples.flights import flights, job
from forebay.cli import commands
from forebay.settings import SETTINGS, load_settings

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
STAGES = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.M)


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_is_built_from_a_stage_of_the_dockerfile(name):
    build = SERVICES[name]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in STAGES


@pytest.mark.parametrize("name", [name for name, s in SERVICES.items() if s["build"]["target"] == "forebay"])
def test_a_forebay_command_is_parsed_by_the_real_command_line(name):
    tier, *arguments = SERVICES[name]["command"]
    command = commands.get_command(click.Context(commands), tier)
    assert command is not None
    given = command.make_context(tier, arguments).params
    given.pop("config")
    settings = load_settings(tier, given, environment=SERVICES[name].get("environment", {}))
    assert settings["listen"].port == 8080


@pytest.mark.parametrize("name", [name for name, s in SERVICES.items() if s["build"]["target"] == "demo"])
def test_a_demo_command_is_parsed_by_its_module(name):
    module, *arguments = SERVICES[name]["command"]
    known = {item.__name__: item for item in (flights, job)}
    known[module].make_parser().parse_args(arguments)


def test_every_forebay_variable_is_a_setting():
    text = (ROOT / "docker-compose.yml").read_text() + (ROOT / "deploy" / "Dockerfile").read_text()
    assert set(re.findall(r"FOREBAY_\w+", text)) <= {setting.environment for setting in SETTINGS}


def test_every_volume_is_declared_and_every_copied_path_exists():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in COMPOSE["volumes"]
    for line in re.findall(r"^COPY (.+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
