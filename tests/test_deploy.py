"""Every command and variable in the compose file and the Dockerfile is one that the code knows."""

import re
import shutil
import subprocess
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
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
STAGES = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.M)


@pytest.mark.parametrize("name", BUILT)
def test_the_service_is_built_from_a_stage_of_the_dockerfile(name):
    build = SERVICES[name]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in STAGES


@pytest.mark.parametrize("name", [name for name, s in BUILT.items() if s["build"]["target"] == "forebay"])
def test_a_forebay_command_is_parsed_by_the_real_command_line(name):
    tier, *arguments = SERVICES[name]["command"]
    command = commands.get_command(click.Context(commands), tier)
    assert command is not None
    given = command.make_context(tier, arguments).params
    given.pop("config")
    settings = load_settings(tier, given, environment=SERVICES[name].get("environment", {}))
    assert settings["listen"].port == 8080


@pytest.mark.parametrize("name", [name for name, s in BUILT.items() if s["build"]["target"] == "demo"])
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
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    for line in re.findall(r"^COPY (?!--from)(.+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_haproxy_takes_its_configuration():
    haproxy = shutil.which("haproxy")
    if haproxy is None:
        pytest.skip("haproxy is not installed")
    done = subprocess.run(
        [haproxy, "-c", "-f", ROOT / "deploy" / "haproxy.cfg"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_watched_is_what_runs():
    prometheus = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    targets = {
        target.split(":")[0]
        for job in prometheus["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets <= set(SERVICES)
    assert {name for name in SERVICES if name.startswith(("worker", "router"))} <= targets
    backends = re.findall(r"^    server \S+ (\S+):8080$", (ROOT / "deploy" / "haproxy.cfg").read_text(), re.M)
    assert set(backends) == {name for name in SERVICES if name.startswith("router")}


@pytest.mark.parametrize("path", ["alerts.yml", "grafana/dashboards/forebay.json"])
def test_every_metric_asked_for_is_documented(path):
    text = (ROOT / "deploy" / path).read_text()
    asked = set(re.findall(r"\bforebay_\w+", text))
    documented = set(re.findall(r"`(forebay_\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    assert asked
    assert asked <= documented


def test_promtool_takes_the_rules_and_the_configuration():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for kind, path in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            [promtool, "check", kind, ROOT / "deploy" / path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
