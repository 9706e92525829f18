"""A plot of growth in plain SVG: a panel for each series, its costs relative to its smallest size, on log axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from bench.figures import Series, number

_TITLE = "Throughput and p99 of single-key reads of one worker, by those at the smallest size"
_COLUMNS = 2
_PANEL_WIDTH_PX, _PANEL_HEIGHT_PX = 440, 236
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 74, 130, 52, 40
"""Of a panel, around its axes."""
_HEAD_PX = 36
_LABEL_HEIGHT_PX = 15
_BLUE, _VERMILION = "#0072b2", "#d55e00"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#555}"
    ".title{font-size:13px;font-weight:600;fill:#222}"
    ".curve{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".grid{stroke:#e2e2e2}"
    ".one{stroke:#888}"
)


@dataclass(frozen=True)
class _Panel:
    """Where a series is drawn: the corner of its axes, and what they reach from and to."""

    left_px: float
    top_px: float
    sizes: tuple[float, float]
    ratios: tuple[float, float]
    width_px: float = _PANEL_WIDTH_PX - _LEFT_PX - _RIGHT_PX
    height_px: float = _PANEL_HEIGHT_PX - _TOP_PX - _BOTTOM_PX

    @property
    def right_px(self) -> float:
        return self.left_px + self.width_px

    @property
    def bottom_px(self) -> float:
        return self.top_px + self.height_px

    def x_px(self, size: float) -> float:
        return self.left_px + self.width_px * _share(size, *self.sizes)

    def y_px(self, ratio: float) -> float:
        return self.bottom_px - self.height_px * _share(ratio, *self.ratios)


def growth_plot(series: Sequence[Series]) -> str:
    """One image of all series."""
    width = _COLUMNS * _PANEL_WIDTH_PX
    height = _HEAD_PX + ceil(len(series) / _COLUMNS) * _PANEL_HEIGHT_PX
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        _text(16, 24, _TITLE, 'class="title"'),
    ]
    for place, one in enumerate(series):
        row, column = divmod(place, _COLUMNS)
        left, top = column * _PANEL_WIDTH_PX, row * _PANEL_HEIGHT_PX + _HEAD_PX
        panel = _Panel(
            left + _LEFT_PX,
            top + _TOP_PX,
            (one.points[0].size, one.points[-1].size),
            _decades([*one.throughput_ratios, *one.p99_ratios]),
        )
        lines += [
            _text(left + 16, top + 20, one.what, 'class="title"'),
            _text(left + 16, top + 35, f"p99 {one.latency_of}"),
            *_grid(panel),
            *(
                _text(panel.x_px(point.size), panel.bottom_px + 20, one.size(point), 'text-anchor="middle"')
                for point in one.points
            ),
            *_curves(panel, one),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _grid(panel: _Panel) -> Iterator[str]:
    lowest, highest = (round(log10(ratio)) for ratio in panel.ratios)
    for ratio in (10.0**power for power in range(lowest, highest + 1)):
        y = panel.y_px(ratio)
        kind = "one" if ratio == 1 else "grid"
        yield (
            f'<line class="{kind}" x1="{panel.left_px:.1f}" x2="{panel.right_px:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        yield _text(panel.left_px - 8, y + 4, f"{ratio:,g} ×", 'text-anchor="end"')


def _curves(panel: _Panel, series: Series) -> Iterator[str]:
    curves = (("throughput", _BLUE, series.throughput_ratios), ("p99", _VERMILION, series.p99_ratios))
    ends = _apart(*(panel.y_px(ratios[-1]) for _, _, ratios in curves))
    for (name, colour, ratios), end in zip(curves, ends, strict=True):
        places = [
            (panel.x_px(point.size), panel.y_px(ratio)) for point, ratio in zip(series.points, ratios, strict=True)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="curve" stroke="{colour}" points="{path}"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)
        yield _text(panel.right_px + 9, end + 4, f"{name} {number(ratios[-1])} ×", f'style="fill:{colour}"')


def _apart(one_px: float, other_px: float) -> tuple[float, float]:
    """Heights for two labels that belong at these: not over each other."""
    short = max(0.0, _LABEL_HEIGHT_PX - abs(one_px - other_px)) / 2
    return (one_px - short, other_px + short) if one_px <= other_px else (one_px + short, other_px - short)


def _text(x: float, y: float, text: str, *attributes: str) -> str:
    opening = " ".join(["<text", f'x="{x:.1f}" y="{y:.1f}"', *attributes])
    return f"{opening}>{escape(text)}</text>"


def _share(value: float, least: float, most: float) -> float:
    """How far along a logarithmic axis a value is, 0 to 1."""
    return log10(value / least) / log10(most / least)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around values, and one below and above 1 at least."""
    return 10.0 ** min(-1, floor(log10(min(values)))), 10.0 ** max(1, ceil(log10(max(values))))
