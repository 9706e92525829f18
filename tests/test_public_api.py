"""What ``docs/compatibility.md`` promises of the Python API is what the code has, and is typed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import public_api

ROOT = Path(__file__).parents[1]


def test_the_public_api_is_as_listed():
    """Run ``python -m tests.public_api`` after a change that the compatibility page allows."""
    assert public_api.render().splitlines() == public_api.FILE.read_text().splitlines()


@pytest.mark.parametrize("module", public_api.MODULES)
def test_the_compatibility_page_names_each_public_module(module):
    assert f"`{module}`" in (ROOT / "docs" / "compatibility.md").read_text()


def test_a_user_program_is_type_checked():
    strict = ("--strict", "--config-file=", "--cache-dir", ".mypy_cache/user")
    command = [sys.executable, "-m", "mypy", *strict, "tests/support/user_program.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
