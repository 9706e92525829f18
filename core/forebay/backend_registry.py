"""What packages register under the schemes of URLs: changelogs, and what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from forebay.errors import ExtraMissing, SettingError

_OWN_PACKAGES = ("forebay", "forebay_worker", "forebay_router")


def extra_missing(user: str, extras: Sequence[str], error: ImportError) -> ExtraMissing | None:
    """The error of a ``user``, such as a command, that failed to import a package of its extras.

    None if it has no extras, or what is missing is a module of forebay itself.
    """
    package = (error.name or "").partition(".")[0]
    if not extras or package in ("", *_OWN_PACKAGES):
        return None
    names = " and ".join(extras)
    return ExtraMissing(
        f"{user} needs the {names} extra{'s' * (len(extras) > 1)}: pip install 'forebay[{','.join(extras)}]' "
        f"({package} is missing)"
    )


def scheme_of(url: str) -> str:
    """The scheme of a URL in lower case, empty if it has none."""
    scheme, colon, _ = url.partition(":")
    return scheme.lower() if colon else ""


def load_backend(group: str, url: str, role: str) -> Any:
    """What is registered in a group of entry points under a URL's scheme; ``role`` says what the URL is of.

    Raises ``SettingError`` naming what is installed, and ``ExtraMissing`` if it cannot be imported.
    """
    for entry_point in entry_points(group=group, name=scheme_of(url)):
        try:
            return entry_point.load()
        except ImportError as error:
            missing = extra_missing(f"A {entry_point.name}:// {role}", entry_point.extras, error)
            if missing is None:
                raise
            raise missing from error
    shown = url.partition("?")[0]
    installed = ", ".join(sorted(map(_form, entry_points(group=group)))) or "none"
    raise SettingError(
        f"The {role} {shown!r} is of no kind that is installed. Installed are {installed}. Other kinds are entry "
        f"points in the group {group!r}."
    )


def _form(entry_point: EntryPoint) -> str:
    """How the URLs of a backend begin, and the extra that it needs."""
    form = f"{entry_point.name}://"
    return f"{form} (with the extra {', '.join(entry_point.extras)})" if entry_point.extras else form
