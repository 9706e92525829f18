"""What needs packages of an extra that is not installed."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import ExtraMissing

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
