"""The commands of ``docs/quickstart.md``, and those of the pages that go on from it, run as they stand."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.dev import Dev, running_dev

DOCS = Path(__file__).parents[2] / "docs"
SHOWN_PID = "24493"


def commands(page: str) -> list[tuple[str, Any]]:
    """Each shell block of a page, and the JSON that is shown as its output; None where none is."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    following = [*blocks[1:], ("", "")]
    return [
        (text, json.loads(shown) if kind == "json" else None)
        for (language, text), (kind, shown) in zip(blocks, following, strict=True)
        if language == "shell"
    ]


def active_of_ann(dev: Dev) -> str:
    """The worker that the page says to kill."""
    path = "/v1/metadata/stores/orders_by_customer/keys/ann"
    host: str = httpx.get(f"http://{dev.router}{path}").json()["active_host"]
    return host


def running(dev: Dev) -> list[int]:
    """The workers that are left."""
    return [pid for pid in dev.workers.values() if Path(f"/proc/{pid}/exe").exists()]


def run(dev: Dev, script: str) -> str:
    """What a block prints; of one that goes on for ever, the first line."""
    script = script.replace("127.0.0.1:8080", dev.router)
    if SHOWN_PID in script:
        script = script.replace(SHOWN_PID, str(dev.workers[active_of_ann(dev)]))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "FOREBAY_URL": f"http://{dev.router}"}
    shell = subprocess.Popen(
        ["bash", "-ec", f"exec {script}" if "--follow" in script else script],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None
    if "--follow" not in script:
        printed, _ = shell.communicate(timeout=20)
        assert shell.returncode == 0, script
        return printed
    first = shell.stdout.readline()
    shell.terminate()
    shell.communicate()
    return first


def test_every_command_prints_what_is_shown(tmp_path):
    (start, _), *others = commands("quickstart.md")
    with running_dev(tmp_path, *shlex.split(start)[2:]) as dev:
        for script, shown in others:
            printed = run(dev, script)
            if shown is None:
                assert "orders_by_customer" in printed, script
            else:
                answer = json.loads(printed)
                assert list(answer) == list(shown), script
                # A hedge, which a busy machine causes, may be answered by a standby.
                assert answer["role"] in ("active", "standby", "restoring"), script
                assert answer.get("type") == shown.get("type"), script
        [survivor] = running(dev)
        assert dev.workers[json.loads(printed)["host"]] == survivor
        token = json.loads(printed)["position"]
        for script, _ in commands("concepts.md"):
            assert "value" in json.loads(run(dev, re.sub(r"(?<=min_position=)\w+[\w-]*", token, script)))
