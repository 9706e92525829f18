"""The versions of other packages that an installation may have."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
REQUIRED = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
VULNERABLE = {
    "click": ("8.3.2", "CVE-2026-7246"),
    "httpcore": ("1.0.8", "CVE-2025-43859, of the h11 that it admits"),
    "pyarrow": ("23.0.0", "CVE-2026-25087"),
    "starlette": ("1.3.0", "GHSA-82w8-qh3p-5jfq, GHSA-jp82-jpqv-5vv3"),
}
"""The last version of each that has a known vulnerability."""


@pytest.mark.parametrize("name", VULNERABLE)
def test_no_version_with_a_known_vulnerability_is_admitted(name):
    found = [one for group in REQUIRED for one in map(Requirement, group) if one.name == name]
    assert found
    assert not [str(one) for one in found if one.specifier.contains(VULNERABLE[name][0])]
