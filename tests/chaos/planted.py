"""Processes with a fault planted in their code, to see that the judge notices it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.mutants.mutant import FOLDERS, Mutant, mutated
from tests.mutants.table import MUTANTS

_ROOT = Path(__file__).parents[2]
MUTANTS_BY_NAME: Mapping[str, Mutant] = {mutant.name: mutant for mutant in MUTANTS}


def planted(name: str, directory: Path) -> Path:
    """A copy of the code with a mutant of the table; raises ``NotApplicable`` if it no longer fits the code."""
    for folder in FOLDERS.values():
        shutil.copytree(_ROOT / folder, directory / folder, ignore=shutil.ignore_patterns("__pycache__"))
    mutant = MUTANTS_BY_NAME[name]
    path = directory / mutant.path
    path.write_text(mutated(mutant, path.read_text()))
    return directory


def start_elsewhere(
    code: Path, arguments: list[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start one of forebay's commands with the code of a copy."""
    given = filter(None, [environment.get("PYTHONPATH")])
    path = os.pathsep.join([*(str(code / folder) for folder in FOLDERS.values()), *given])
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "forebay", *arguments],
            stdout=file,
            stderr=file,
            env={**environment, "PYTHONPATH": path},
        )
