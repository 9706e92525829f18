"""The nine parts and who may import whom, drawn from the contracts of ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs.drawings.canvas import Canvas

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_WIDTH, _HEIGHT = 190, 48
_PLACES = {
    "forebay_spark": (0, 0, "spark", "the sink"),
    "forebay_worker": (1, 0, "service", "the worker tier"),
    "forebay_router": (2, 0, "router", "the router tier"),
    "forebay_tap": (0, 1, "tap", "reads Spark's checkpoints"),
    "forebay_console": (3, 1, "console", "the page and its documents"),
    "forebay_changelog": (1, 2, "changelog", "Kafka and SQLite logs"),
    "forebay_web": (2, 2, "web", "HTTP of both tiers"),
    "forebay_client": (0, 2, "client", "Python client, query, status"),
    "forebay": (1, 3, "core", "lag, topology, codecs, wire"),
}
"""By package: column, row, folder, what it is."""


def _contracts() -> dict[str, dict[str, Any]]:
    """The contracts of the parts, by package."""
    tool = tomllib.loads(_PROJECT.read_text())["tool"]["importlinter"]
    of_parts = [
        contract for contract in tool["contracts"] if set(contract.get("forbidden_modules", "-")) <= {*_PLACES}
    ]
    return {contract["source_modules"][0]: contract for contract in of_parts}


def arrows() -> dict[str, set[str]]:
    """By package, the parts that all its modules may import."""
    return {part: {*_PLACES} - {part, *contract["forbidden_modules"]} for part, contract in _contracts().items()}


def direct(allowed: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""
    return [
        (part, other)
        for part, others in allowed.items()
        for other in sorted(others)
        if not any(other in allowed[between] for between in others)
    ]


def of_applications() -> list[tuple[str, str]]:
    """The tiers' applications, each with the part that only it may import."""
    lines = [line for contract in _contracts().values() for line in contract.get("ignore_imports", ())]
    pairs = [line.removesuffix(".*").split(" -> ") for line in lines]
    return [(one.removesuffix(".app"), other) for one, other in pairs if one.endswith(".app")]


def parts_svg() -> str:
    """The drawing."""
    canvas = Canvas(
        930,
        340,
        "The nine parts: each may import what its arrows lead to, applications also what dashed ones do",
    )
    for left, top, folder, what in map(_box, _PLACES):
        canvas.box(left, left + _WIDTH, top, _HEIGHT, "good" if folder in ("service", "router") else "other")
        canvas.text(left + _WIDTH // 2, top + 20, folder, anchor="middle", kind="strong")
        canvas.text(left + _WIDTH // 2, top + 38, what, anchor="middle", kind="dim")
    for part, other in direct(arrows()):
        _arrow(canvas, part, other)
    for part, other in of_applications():
        _arrow(canvas, part, other, "grid")
    return canvas.svg()


def _box(package: str) -> tuple[int, int, str, str]:
    column, row, folder, what = _PLACES[package]
    return 16 + column * 236, 12 + row * 88, folder, what


def _arrow(canvas: Canvas, part: str, other: str, kind: str = "line") -> None:
    left, top, *_ = _box(part)
    other_left, other_top, *_ = _box(other)
    # Arrows to one box end beside each other.
    shift = max(-60, min(60, (left - other_left) // 5))
    start, end = left + _WIDTH // 2 - shift // 2, other_left + _WIDTH // 2 + shift
    canvas.pointer((start, top + _HEIGHT), (end, other_top), kind)
