"""Small faults of a pure module, made from its syntax tree: its own tests must notice each."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.mutants.mutant import FOLDERS, ROOT, NotApplicable, PlantedFault, module_path

_TESTED_ELSEWHERE = {
    "forebay.retention": "service/tasks/test_expiry.py",
    "forebay.store_kinds": "service/tasks/test_expiry.py",
    "forebay_worker.group.current_assignment": "service/group/test_assignor.py",
    "forebay_worker.group.quotas": "service/group/test_assignor.py",
    "forebay_worker.group.target_assignment": "service/group/test_assignor.py",
}
"""The tests of modules that have no file of tests to themselves."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


def generated(module: str, count: int, seed: int) -> list[PlantedFault]:
    """As many different faults of a module as there are, up to ``count``; raises ``NotApplicable``."""
    path, test = module_path(module), unit_test(module)
    if not (ROOT / path).is_file() or not (ROOT / "tests" / test).is_file():
        raise NotApplicable(f"{module} is not at {path}, or its tests are not at tests/{test}")
    text = (ROOT / path).read_text()
    faults = len(list(_replacements(ast.parse(text))))
    chosen = sorted(random.Random(seed).sample(range(faults), min(count, faults)))
    return [PlantedFault(*_planted(module, text, number), (test,)) for number in chosen]


def unit_test(module: str) -> str:
    """The file of a module's own tests, relative to ``tests/``."""
    package, *folders, name = module.split(".")
    return _TESTED_ELSEWHERE.get(module) or str(Path(FOLDERS.get(package, package), *folders, f"test_{name}.py"))


def _planted(module: str, text: str, number: int) -> tuple[str, Path, str]:
    tree = ast.parse(text)
    node, replacement = next(islice(_replacements(tree), number, None))
    name = f"{module}:{node.lineno} {_shown(node)} → {_shown(replacement)}"
    return name, module_path(module), ast.unparse(_Replacing(node, replacement).visit(tree))


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


class _Replacing(ast.NodeTransformer):
    def __init__(self, node: ast.AST, replacement: ast.AST) -> None:
        self._node = node
        self._replacement = replacement

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replacement if node is self._node else self.generic_visit(node)


def _replacements(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each expression of a module that can be replaced, with what replaces it."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield node, ast.Compare(left, [_COMPARISONS[type(operator)]()], [right])
            case ast.BoolOp(op=ast.And(), values=values):
                yield node, ast.BoolOp(ast.Or(), values)
            case ast.BoolOp(op=ast.Or(), values=values):
                yield node, ast.BoolOp(ast.And(), values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, operand
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                yield node, ast.Constant(value + 1)
                yield node, ast.Constant(value - 1)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield test, ast.UnaryOp(ast.Not(), test)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield value, ast.Constant(None)
