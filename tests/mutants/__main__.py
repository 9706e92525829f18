"""Plants every fault of the table in a copy of the code, and reports those that no test notices.

``scripts/mutants [NAME…] [--jobs N]``: a name selects the mutants whose name contains it. The exit status is 1 if
a mutant survives, no longer applies, or cannot be judged because its tests fail without it.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.mutant import FOLDERS, Mutant, NotApplicable, check, mutated
from tests.mutants.table import MUTANTS

_ROOT = Path(__file__).parents[2]
_LONGEST_TEST_S = 100
_LONGEST_RUN_S = 400
_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest."""


class Checkout:
    """A copy of the code for one process of tests at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (_ROOT / name).is_file():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(_ROOT / name, path / name)
        if (_ROOT / ".jars").exists():
            (path / ".jars").symlink_to(_ROOT / ".jars")
        self._python = path / ".venv" / "bin" / "python"
        venv.create(path / ".venv", symlinks=True)
        (own,) = path.glob(".venv/lib/python*/site-packages")
        # With this environment's packages, but not its link to this code: only here are such files read.
        folders = [*(path / folder for folder in FOLDERS.values()), *site.getsitepackages()]
        (own / "mutants.pth").write_text("".join(f"{folder}\n" for folder in folders))
        # Compiled code may be taken for that of a text of the same size and second.
        self._environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def require_own_code(self) -> None:
        """Raise ``NotApplicable`` unless Python imports the code here."""
        code = f"import {', '.join(FOLDERS)}; print({', '.join(f'{name}.__file__' for name in FOLDERS)})"
        found = subprocess.run(
            [self._python, "-c", code],
            cwd=self.path,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        if any(not file.startswith(str(self.path)) for file in found.stdout.split()):
            raise NotApplicable(f"Python in {self.path} imports {found.stdout}")

    def test(self, tests: Iterable[str]) -> tuple[int | None, str]:
        """Pytest's exit status, None if it takes too long, and what it printed."""
        command = [
            str(self._python),
            *["-m", "pytest", "-xq", "--no-header", "--tb=line", "-p", "no:cacheprovider"],
        ]
        command += [f"--timeout={_LONGEST_TEST_S}", *(f"tests/{test}" for test in tests)]
        process = subprocess.Popen(
            command,
            cwd=self.path,
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

    def verdict(self, mutant: Mutant) -> str:
        """Empty if a test notices the fault, else what is wrong."""
        path = self.path / mutant.path
        text = path.read_text()
        path.write_text(mutated(mutant, text))
        try:
            status, output = self.test(mutant.tests)
        finally:
            path.write_text(text)
        if status == _FAILED:
            return ""
        return "SURVIVED" if status == _PASSED else f"NOT JUDGED (pytest {status})\n{output[-2_000:]}"


def run(mutants: Sequence[Mutant], jobs: int, directory: Path) -> int:
    """Judge mutants, and print each; returns how many are not noticed."""
    checkouts = [Checkout(directory / str(job)) for job in range(jobs)]
    free: queue.SimpleQueue[Checkout] = queue.SimpleQueue()
    for checkout in checkouts:
        checkout.require_own_code()
        free.put(checkout)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    status, output = checkouts[0].test(tests)
    if status != _PASSED:
        print(f"The tests fail without any mutant:\n{output[-4_000:]}")
        return 1

    def run_one(mutant: Mutant) -> str:
        checkout = free.get()
        try:
            return checkout.verdict(mutant)
        finally:
            free.put(checkout)

    unnoticed = 0
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = {pool.submit(run_one, mutant): mutant for mutant in mutants}
        for future in as_completed(verdicts):
            mutant, verdict = verdicts[future], future.result()
            unnoticed += bool(verdict)
            print(f"{mutant.name}: {verdict or 'noticed'}", flush=True)
    return unnoticed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the names of mutants (default: all)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="how many at once (default: one a processor)"
    )
    options = parser.parse_args()
    mutants = [
        mutant for mutant in MUTANTS if not options.names or any(name in mutant.name for name in options.names)
    ]
    try:
        for mutant in mutants:
            check(mutant, _ROOT)
        with tempfile.TemporaryDirectory(prefix="forebay-mutants-") as directory:
            unnoticed = run(mutants, max(1, min(options.jobs, len(mutants))), Path(directory))
    except NotApplicable as error:
        print(error)
        return 1
    print(f"{len(mutants)} mutants, {unnoticed} not noticed")
    return int(not mutants or unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
