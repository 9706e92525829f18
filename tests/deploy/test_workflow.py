"""The workflow runs scripts that exist, on every Python and Spark that forebay names."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
MATRIX = JOBS["test"]["strategy"]["matrix"]


def test_every_python_of_the_package_is_tested():
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in classifiers]
    assert MATRIX["python"] == [match[1] for match in found if match]


def test_every_spark_whose_checkpoints_are_read_is_tested():
    archives = (ROOT / "tests" / "tap" / "spark_checkpoint" / "checkpoints").glob("spark-*.tar.xz")
    assert MATRIX["spark"] == sorted(re.fullmatch(r"spark-(.+)\.tar\.xz", path.name)[1] for path in archives)


def test_the_jobs_are_what_a_change_must_pass():
    steps = {step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step}
    must = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("scripts/")]
    assert must
    assert set(must) <= steps


def test_hooks_run_what_is_installed_here():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    for hook in hooks:
        assert hook["language"] == "system"
        assert (ROOT / hook["entry"].split()[0]).exists(), hook["id"]
