"""The code speaks the field's words: no verbs of perception in names, and a class name means one thing."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.parts import PARTS

ROOT = Path(__file__).parent.parent
PRODUCT = tuple(PARTS)
BANNED = frozenset({"told", "came", "asked", "heard", "look", "think", "hurry", "hasten", "say"})
"""An event is ``on_…``, a question ``is_…`` or ``has_…``, an action a verb of the field."""


def modules(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Every name that a module defines: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case (
                ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def test_no_name_has_a_verb_of_perception():
    found = {
        f"{path}: {name}"
        for path, tree in modules(*PRODUCT, "bench", "examples", "tests")
        for name in bound_names(tree)
        if words_of(name) & BANNED
    }
    assert not found, "see docs/glossary.md for the field's words"


def test_a_class_name_is_unique():
    homes = defaultdict(set)
    for path, tree in modules(*PRODUCT):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(str(path))
    assert {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1} == {}
