"""Each part has a folder, a first page, a number of lines that it keeps to, and modules of a readable size."""

import re
from pathlib import Path

import pytest

from tests.support.parts import PARTS

ROOT = Path(__file__).parents[1]
MAX_FILES = 340
MAX_LINES = 500
"""Of a module."""


def modules(part: str) -> list[Path]:
    return list((ROOT / part / PARTS[part].package).rglob("*.py"))


def lines(path: Path) -> int:
    return path.read_text().count("\n")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_keeps_to_its_lines(part):
    """To raise the number is a decision, with a reason in the commit."""
    assert sum(map(lines, modules(part))) <= PARTS[part].max_lines


@pytest.mark.parametrize("part", PARTS)
def test_no_module_is_too_long(part):
    assert [str(path) for path in modules(part) if lines(path) > MAX_LINES] == []


def test_there_are_not_too_many_modules():
    assert sum(len(modules(part)) for part in PARTS) <= MAX_FILES


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_a_first_page_that_names_three_files(part):
    page = (ROOT / part / "README.md").read_text()
    first = re.findall(r"^\* \[`.*`\]\((.*)\)", page.partition("## Read first")[2], re.M)
    assert len(first) == 3
    assert all((ROOT / part / path).is_file() for path in first)
    assert (ROOT / "tests" / part).is_dir()
