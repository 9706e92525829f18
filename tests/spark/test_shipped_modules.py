"""Executors need not have forebay: what is sent to them imports nothing that they lack."""

import ast
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark


def imported(file: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


def test_shipped_modules_import_only_what_executors_have():
    """They may import one another, the standard library and PyArrow."""
    from forebay_spark.sink import _BY_VALUE

    sent = {module.__name__ for module in _BY_VALUE}
    for module in _BY_VALUE:
        lacking = {
            name
            for name in imported(module.__file__) - sent
            if name.partition(".")[0] not in sys.stdlib_module_names | {"pyarrow"}
        }
        assert lacking == set(), module.__name__
