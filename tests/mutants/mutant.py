"""A planted fault: one fragment of one symbol's source replaced by another."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path
from typing import NamedTuple

FOLDERS = {
    "forebay": "core",
    "forebay_changelog": "changelog",
    "forebay_client": "client",
    "forebay_web": "web",
    "forebay_console": "console",
    "forebay_tap": "tap",
    "forebay_spark": "spark",
    "forebay_worker": "service",
    "forebay_router": "router",
}
"""Where each package lies."""


class NotApplicable(Exception):
    """A mutant no longer fits the code, or a test that it names is gone."""


class Mutant(NamedTuple):
    """One planted fault, and the tests of which at least one must fail.

    ``symbol`` is ``module:qualname``, so the fault stays where it is meant when lines move. ``old`` occurs in that
    symbol's source exactly once.
    """

    name: str
    promise: str
    symbol: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Node ids of pytest, relative to ``tests/``."""

    @property
    def path(self) -> Path:
        """The module's file, relative to the repository."""
        package, *rest = self.symbol.partition(":")[0].split(".")
        module = Path(FOLDERS[package], package, *rest)
        return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")


def _parsed(text: str) -> ast.Module:
    """A module's tree. Why repeated: a thread that parses at the same time upsets CPython 3.11 (gh-106905)."""
    for _ in range(100):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def mutated(mutant: Mutant, text: str) -> str:
    """A module's text with the fault planted; raises ``NotApplicable``."""
    qualname = mutant.symbol.partition(":")[2]
    lines = text.splitlines(keepends=True)
    node = _find(_parsed(text), qualname.split("."))
    if node is None:
        raise NotApplicable(f"{mutant.name}: there is no {mutant.symbol}")
    first, end = node.lineno - 1, node.end_lineno
    source = "".join(lines[first:end])
    count = source.count(mutant.old)
    if count != 1:
        raise NotApplicable(f"{mutant.name}: {mutant.symbol} contains {mutant.old!r} {count} times, not once")
    changed = "".join([*lines[:first], source.replace(mutant.old, mutant.new), *lines[end:]])
    try:
        _parsed(changed)
    except SyntaxError as error:
        raise NotApplicable(f"{mutant.name}: what it makes of {mutant.symbol} is no Python ({error})") from None
    return changed


def check(mutant: Mutant, root: Path) -> None:
    """Raise ``NotApplicable`` unless the fault can be planted in a checkout, and its tests are there."""
    if not (root / mutant.path).is_file():
        raise NotApplicable(f"{mutant.name}: there is no {mutant.path}")
    mutated(mutant, (root / mutant.path).read_text())
    if not mutant.tests:
        raise NotApplicable(f"{mutant.name}: it names no test")
    for test in mutant.tests:
        path, _, function = test.partition("::")
        if function.partition("[")[0] not in _functions(root / "tests" / path):
            raise NotApplicable(f"{mutant.name}: there is no test {test}")


def _find(tree: ast.AST, names: list[str]) -> ast.stmt | None:
    """The class, function or assignment with a qualified name."""
    for node in ast.iter_child_nodes(tree):
        if names[0] in _names(node):
            assert isinstance(node, ast.stmt)
            return node if len(names) == 1 else _find(node, names[1:])
    return None


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    found = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return {name.id for name in found if isinstance(name, ast.Name)} if isinstance(node, ast.stmt) else set()


def _functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
