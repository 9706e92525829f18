"""The three figures of an answer: where record lag, time lag and age begin and end."""

from __future__ import annotations

from docs.drawings.canvas import Canvas

_NOW = 800
_RECORD = 60
_FIRST = 200
_HEARTBEAT, _APPLIED, _WRITTEN = 3, 6, 9
"""Offsets of the newest heartbeat that was applied, of the position, and of the log's end."""


def lag_svg() -> str:
    """The drawing."""
    canvas = Canvas(
        880, 360, "Record lag counts changelog records, time lag counts from the log, age from the source"
    )
    canvas.text(12, 54, "the source's rows")
    canvas.box(_FIRST - 20, _NOW, 34, 30, "wait")
    canvas.text(12, 134, "the changelog")
    canvas.text(12, 204, "what the answer holds")
    for offset in range(_WRITTEN):
        _record(canvas, offset, 114, "other")
    for offset in range(_APPLIED):
        _record(canvas, offset, 184, "good")
    position, end = _at(_APPLIED), _at(_WRITTEN)
    canvas.line((position, 106), (position, 296), "grid")
    canvas.line((end, 106), (end, 236), "grid")
    canvas.span(position, end, 250, f"record_lag {_WRITTEN - _APPLIED}")
    canvas.span(position, _NOW, 296, "time_lag_ms")
    as_of = _at(_HEARTBEAT) - 34
    canvas.line((as_of, 64), (as_of, 342), "grid")
    canvas.text(as_of + 4, 54, "as_of of the heartbeat ♥", kind="dim")
    canvas.span(as_of, _NOW, 342, "age_ms")
    canvas.line((_NOW, 20), (_NOW, 350))
    canvas.text(_NOW + 6, 30, "now", kind="strong")
    canvas.text(12, 250, "offsets", kind="dim")
    canvas.text(12, 296, "since the log's end was there", kind="dim")
    canvas.text(12, 342, "since the source", kind="dim")
    return canvas.svg()


def _at(offset: int) -> int:
    return _FIRST + offset * _RECORD


def _record(canvas: Canvas, offset: int, top: int, kind: str) -> None:
    left = _at(offset)
    canvas.box(left + 1, left + _RECORD - 1, top, 30, kind, "♥" if offset == _HEARTBEAT else str(offset))
