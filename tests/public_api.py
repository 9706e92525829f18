"""The public Python API as text: run as ``python -m tests.public_api`` to write ``tests/public_api.txt``.

``docs/compatibility.md`` promises it. A line that goes or changes is a break, one that is added is not.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).with_suffix(".txt")
MODULES: dict[str, tuple[str, ...]] = {
    "forebay": ("__version__",),
    "forebay.client": (),
    "forebay.errors": (),
    "forebay.lag": ("Lag",),
    "forebay.spark": (),
    "forebay.authentication": ("Authenticator",),
    "forebay.partitioning": ("Murmur2Partitioner", "StreamPartitioner"),
    "forebay.state_store": (),
}
"""What is public of each module: the names given, or all that it exports or defines."""
CONSTRUCTED = ("AsyncClient", "Client", "Problem", "Sink")
"""What users construct. Other classes they get, so that these may get further fields."""


def render() -> str:
    """Every public name with its signature, a line each."""
    return "".join(f"{line}\n" for module, names in MODULES.items() for line in _of_module(module, names))


def _of_module(name: str, names: tuple[str, ...]) -> Iterator[str]:
    module = importlib.import_module(name)
    for public in sorted(names or _exported(module)):
        yield from _of_object(f"{name}.{public}", getattr(module, public))


def _exported(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return [name for name in own if not name.startswith("_")]


def _of_object(path: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value) and typing.get_origin(value) is None:
        yield from _of_class(path, value)
    else:
        yield path


def _of_class(path: str, cls: type) -> Iterator[str]:
    """The class, with what it has beside the members of a base that is public too."""
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object and base.__name__[0] != "_")
    yield f"{path}({bases})" if bases else path
    known = {name for base in cls.__bases__ if _is_public(base) for name in dir(base)}
    members = {
        name: ancestor
        for ancestor in reversed(cls.__mro__)
        if ancestor.__module__.startswith("forebay")
        for name in (*vars(ancestor), *inspect.get_annotations(ancestor))
        if not name.startswith("_") or (name == "__init__" and cls.__name__ in CONSTRUCTED)
    }
    for name, ancestor in sorted(members.items()):
        if name not in known or name in vars(cls):
            yield f"{path}.{name}{_type_of(ancestor, name)}"


def _is_public(cls: type) -> bool:
    names = MODULES.get(cls.__module__)
    return names is not None and (names == () or cls.__name__ in names)


def _type_of(cls: type, name: str) -> str:
    """A method's signature, or what is annotated."""
    member = inspect.getattr_static(cls, name, None)
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    if isinstance(member, property):
        return f": {_text(inspect.get_annotations(member.fget)['return'])}" if member.fget else ""
    if inspect.isfunction(member):
        given = inspect.signature(member)
        parameters = [
            one if one.annotation is one.empty else one.replace(annotation=_Text(one.annotation))
            for one in given.parameters.values()
        ]
        return str(given.replace(parameters=parameters, return_annotation=_Text(given.return_annotation)))
    annotations = inspect.get_annotations(cls)
    annotated = f": {_text(annotations[name])}" if name in annotations else ""
    return f"{annotated} = {member!r}" if isinstance(member, int | str) else annotated


class _Text:
    """An annotation that is shown as it is written."""

    def __init__(self, annotation: Any) -> None:
        self._shown = _text(annotation)

    def __repr__(self) -> str:
        return self._shown


def _text(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


if __name__ == "__main__":
    FILE.write_text(render())
