"""One thing that was checked: what was found, and what is wrong with it."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import to_builtins

from forebay.console.findings import Finding, Severity
from forebay.errors import ForebayError


class Check(NamedTuple):
    """A name, what was found in words, and the findings; without any it is as it should be."""

    name: str
    detail: str
    findings: tuple[Finding, ...] = ()

    def document(self) -> dict[str, Any]:
        """The check as JSON values."""
        return {**self._asdict(), "findings": to_builtins(self.findings)}


def of_error(
    kind: str, error: ForebayError, remedy: str, severity: Severity = "error", store: str | None = None
) -> Finding:
    """The finding of an error; ``remedy`` is for one whose message has none."""
    return Finding.of_message(kind, severity, str(error), remedy, store)
