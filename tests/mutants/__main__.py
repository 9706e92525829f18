"""Plants faults in a copy of the code, one at a time, and reports those that no test notices.

``scripts/mutants [NAME…]`` plants those of the table; a name selects the faults whose name contains it.
``scripts/mutants --generated MODULE [--count N] [--seed S]`` plants faults that it makes of a module's syntax.
The exit status is 1 if a fault survives, does not fit the code, or cannot be judged.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.generated import generated
from tests.mutants.mutant import FOLDERS, ROOT, NotApplicable, PlantedFault, plant
from tests.mutants.table import MUTANTS

_LONGEST_TEST_S = 100
_LONGEST_RUN_S = 400
_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest."""
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", ".jars", "__pycache__")


class Checkout:
    """A copy of the code for one process of tests at a time."""

    def __init__(self, path: Path) -> None:
        shutil.copytree(ROOT, path, ignore=_NOT_COPIED, symlinks=True)
        if (ROOT / ".jars").exists():
            (path / ".jars").symlink_to(ROOT / ".jars")
        self._path = path
        self._python = path / ".venv" / "bin" / "python"
        venv.create(path / ".venv", symlinks=True)
        (own,) = path.glob(".venv/lib/python*/site-packages")
        # With this environment's packages, but not its link to this code: only here are such files read.
        folders = [*(path / folder for folder in FOLDERS.values()), *site.getsitepackages()]
        (own / "mutants.pth").write_text("".join(f"{folder}\n" for folder in folders))
        self._test_without_faults = functools.cache(self._test)
        # Compiled code may be taken for that of a text of the same size and second.
        self._environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment.pop("PYTHONPATH", None)

    def _test(self, tests: tuple[str, ...]) -> tuple[int | None, str]:
        """Pytest's exit status, None if it takes too long, and what it printed."""
        command = [
            *[str(self._python), "-m", "pytest", "-xq", "--no-header", "--tb=line", "-p", "no:cacheprovider"],
            *[f"--timeout={_LONGEST_TEST_S}", *(f"tests/{test}" for test in tests)],
        ]
        process = subprocess.Popen(
            command,
            cwd=self._path,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_LONGEST_RUN_S)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]

    def verdict(self, fault: PlantedFault) -> str:
        """Empty if a test notices the fault, else what is wrong."""
        status, output = self._test_without_faults(fault.tests)
        if status != _PASSED:
            return f"NOT JUDGED (without the fault pytest {status})\n{output[-2_000:]}"
        path = self._path / fault.path
        text = path.read_text()
        path.write_text(fault.text)
        try:
            status, output = self._test(fault.tests)
        finally:
            path.write_text(text)
        if status == _FAILED:
            return ""
        return "SURVIVED" if status == _PASSED else f"NOT JUDGED (pytest {status})\n{output[-2_000:]}"


def run(faults: Sequence[PlantedFault], jobs: int, directory: Path) -> int:
    """Judge faults, and print each; returns how many are not noticed."""

    def judge(job: int) -> int:
        checkout, verdicts = Checkout(directory / str(job)), []
        for fault in faults[job::jobs]:
            verdicts.append(checkout.verdict(fault))
            print(f"{fault.name}: {verdicts[-1] or 'noticed'}", flush=True)
        return sum(map(bool, verdicts))

    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(judge, range(jobs)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the names of faults in the table (default: all)")
    parser.add_argument("--generated", metavar="MODULE", help="make the faults of a module's syntax tree")
    parser.add_argument("--count", type=int, default=15, help="how many of them at most (default: 15)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="how many at once (default: per processor)"
    )
    return parser.parse_args()


def _faults(options: argparse.Namespace) -> list[PlantedFault]:
    if options.generated:
        return generated(options.generated, options.count, options.seed)
    names = options.names or [""]
    return [plant(mutant) for mutant in MUTANTS if any(name in mutant.name for name in names)]


def main() -> int:
    """The command."""
    options = _options()
    try:
        faults = _faults(options)
        with tempfile.TemporaryDirectory(prefix="forebay-mutants-") as directory:
            unnoticed = run(faults, max(1, min(options.jobs, len(faults))), Path(directory))
    except NotApplicable as error:
        print(error)
        return 1
    print(f"{len(faults)} faults, {unnoticed} not noticed")
    return int(not faults or unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
