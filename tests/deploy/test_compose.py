"""Every command and variable in the files for Docker exists in the code."""

import re
import shutil
import subprocess
from importlib.metadata import entry_points, requires
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from examples.flights import flights, job
from forebay.settings import SETTINGS
from tests.support.command_lines import settings_of

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
BUILT = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
STAGES = re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.M)
COPIED = {
    source for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M) for source in line.split()[:-1]
}


@pytest.mark.parametrize("name", BUILT)
def test_the_service_is_built_from_a_stage_of_the_dockerfile(name):
    build = SERVICES[name]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    assert build["target"] in STAGES


@pytest.mark.parametrize("name", [name for name, s in BUILT.items() if s["build"]["target"] == "forebay"])
def test_a_forebay_command_is_parsed_by_the_real_command_line(name):
    settings = settings_of(SERVICES[name]["command"], SERVICES[name].get("environment", {}))
    assert settings["listen"][0].port == 8080


@pytest.mark.parametrize("name", [name for name, s in BUILT.items() if s["build"]["target"] == "demo"])
def test_a_demo_command_is_parsed_by_its_module(name):
    module, *arguments = SERVICES[name]["command"]
    known = {item.__name__: item for item in (flights, job)}
    known[module].make_parser().parse_args(arguments)


def test_every_forebay_variable_is_a_setting():
    files = [ROOT / "docker-compose.yml", ROOT / "deploy" / "Dockerfile"]
    text = "".join(file.read_text() for file in [*files, *(ROOT / "deploy").glob("*.service")])
    assert set(re.findall(r"FOREBAY_\w+", text)) <= {setting.environment for setting in SETTINGS}


def packages_of(extras):
    return {
        name
        for name, _, condition in (one.partition(";") for one in requires("forebay"))
        for extra in extras
        if f"extra == '{extra}'" in condition
    }


def test_the_image_has_what_its_commands_need():
    installed = re.search(r'"\.\[(.+)\]"', DOCKERFILE)[1].split(",")
    needed = {extra for command in entry_points(group="forebay.commands") for extra in command.extras}
    assert packages_of(needed | {"kafka"}) <= packages_of(installed)
    assert packages_of(needed)


def test_every_volume_is_declared_and_every_copied_path_exists():
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    assert COPIED
    for source in COPIED:
        assert (ROOT / source).exists(), source


def test_a_build_is_sent_what_is_copied_and_nothing_else():
    first, *others = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] != "#"]
    assert first == "*"
    assert {line[1:] for line in others if line.startswith("!")} == COPIED
    assert all(line.startswith(("!", "**/")) for line in others)


def test_volumes_are_mounted_on_directories_of_the_user():
    # Elsewhere it would belong to root, and nothing could be written to it.
    owned = set(re.search(r"install -d -o forebay -g forebay (.+)$", DOCKERFILE, re.M)[1].split())
    mounts = {volume.split(":")[1] for service in BUILT.values() for volume in service.get("volumes", ())}
    assert mounts
    assert mounts <= owned


def test_haproxy_takes_its_configuration():
    haproxy = shutil.which("haproxy")
    if haproxy is None:
        pytest.skip("haproxy is not installed")
    done = subprocess.run(
        [haproxy, "-c", "-f", ROOT / "deploy" / "haproxy.cfg"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_routers_trust_haproxy_and_no_other_container():
    """Else limits would take all clients for one, or believe what any container says of its client."""
    address = SERVICES["haproxy"]["networks"]["default"]["ipv4_address"]
    for name in ("router-1", "router-2"):
        assert settings_of(SERVICES[name]["command"], {})["trusted_proxies"] == (f"{address}/32",)
    [pool] = COMPOSE["networks"]["default"]["ipam"]["config"]
    assert ip_address(address) in ip_network(pool["subnet"])
    assert ip_address(address) not in ip_network(pool["ip_range"])


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
    # Those that are ready, and those that are there.
    assert sorted(backends) == sorted(2 * [name for name in SERVICES if name.startswith("router")])
