"""A planted fault: one fragment of one symbol's source replaced by another."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
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
    """A fault does not fit the code, or a test that must notice it is gone."""


class Mutant(NamedTuple):
    """One planted fault, and the test that must fail.

    ``symbol`` is ``module:qualname``, so the fault stays where it is meant when lines move. ``old`` occurs in that
    symbol's source exactly once. ``test`` is pytest's node id, relative to ``tests/``.
    """

    name: str
    promise: str
    symbol: str
    old: str
    new: str
    test: str

    @property
    def path(self) -> Path:
        """The module's file, relative to the repository."""
        return module_path(self.symbol.partition(":")[0])


class PlantedFault(NamedTuple):
    """The text of a module with a fault, and the tests of which one must notice it."""

    name: str
    path: Path
    text: str
    tests: tuple[str, ...]


def module_path(module: str) -> Path:
    """A module's file, relative to the repository."""
    package, *rest = module.split(".")
    if package not in FOLDERS:
        raise NotApplicable(f"there is no package {package}")
    path = Path(FOLDERS[package], package, *rest)
    return path / "__init__.py" if (ROOT / path).is_dir() else path.with_suffix(".py")


def mutated(mutant: Mutant, text: str) -> str:
    """A module's text with the fault planted; raises ``NotApplicable``."""
    node = _find(ast.parse(text), mutant.symbol.partition(":")[2].split("."))
    if node is None:
        raise NotApplicable(f"{mutant.name}: there is no {mutant.symbol}")
    lines = text.splitlines(keepends=True)
    first, end = node.lineno - 1, node.end_lineno
    source = "".join(lines[first:end])
    count = source.count(mutant.old)
    if count != 1:
        raise NotApplicable(f"{mutant.name}: {mutant.symbol} contains {mutant.old!r} {count} times, not once")
    changed = "".join([*lines[:first], source.replace(mutant.old, mutant.new), *lines[end:]])
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise NotApplicable(f"{mutant.name}: what it makes of {mutant.symbol} is no Python ({error})") from None
    return changed


def plant(mutant: Mutant) -> PlantedFault:
    """A mutant in this code; raises ``NotApplicable`` if it does not fit the code, or its test is gone."""
    if not (ROOT / mutant.path).is_file():
        raise NotApplicable(f"{mutant.name}: there is no {mutant.path}")
    path, _, function = mutant.test.partition("::")
    if function.partition("[")[0] not in _functions(ROOT / "tests" / path):
        raise NotApplicable(f"{mutant.name}: there is no test {mutant.test}")
    text = mutated(mutant, (ROOT / mutant.path).read_text())
    return PlantedFault(mutant.name, mutant.path, text, (mutant.test,))


def _find(tree: ast.AST, names: list[str]) -> ast.stmt | None:
    """The class, function or assignment with a qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt) and names[0] in _names(node):
            return node if len(names) == 1 else _find(node, names[1:])
    return None


def _names(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=[ast.Tuple(elts=elements)]):
            return {element.id for element in elements if isinstance(element, ast.Name)}
    return set()


def _functions(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
