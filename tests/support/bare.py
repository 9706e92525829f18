"""Python as it is after ``pip install forebay`` alone, or with some extras: other packages cannot be imported."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

_BARRIER = """
import sys

class Barrier:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Barrier())
"""


def run_bare(code: str, *arguments: object, extra: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code that finds only what forebay needs without an extra, or with one."""
    allowed = set(_closure("forebay", extra, set()))
    absent = {
        module
        for module, brought_by in packages_distributions().items()
        if allowed.isdisjoint(map(_normalised, brought_by))
    }
    return subprocess.run(
        [sys.executable, "-c", _BARRIER.format(absent=absent) + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def _closure(distribution: str, extra: str, seen: set[str]) -> Iterator[str]:
    """A distribution and those that it requires with an extra, if one is named."""
    if distribution in seen:
        return
    seen.add(distribution)
    yield distribution
    try:
        required = requires(distribution) or ()
    except PackageNotFoundError:
        return  # for another Python or system
    for requirement in required:
        condition = re.search(r"extra == ['\"](.+?)['\"]", requirement)
        if condition is None or condition[1] == extra:
            yield from _closure(_normalised(re.split(r"[^\w.-]", requirement)[0]), "", seen)


def _normalised(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
