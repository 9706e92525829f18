"""A drawing of boxes, lines and texts, as SVG that follows the reader's light or dark theme."""

from __future__ import annotations

from html import escape

_STYLE = """
svg{--page:#fff;--ink:#222;--dim:#666;--grid:#d8d8d8;--good:#bfe6d0;--other:#cfe0f5;--wait:#fae6b5;--bad:#f5c6c0}
@media (prefers-color-scheme:dark){
svg{--page:#1e2129;--ink:#e6e6e6;--dim:#a5a5a5;--grid:#454a55;--good:#1f5c40;--other:#27476e;--wait:#6b5417;--bad:#7a2e27}}
text{font:13px system-ui,sans-serif;fill:var(--ink)}
.dim{font-size:12px;fill:var(--dim)}.strong{font-weight:600}
.page{fill:var(--page)}.line{stroke:var(--ink);fill:none}.grid{stroke:var(--grid);stroke-dasharray:3 3}
.good{fill:var(--good)}.other{fill:var(--other)}.wait{fill:var(--wait)}.bad{fill:var(--bad)}
""".strip().replace("\n", "")
_ARROW = '<marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M0 0L6 3L0 6z" fill="var(--ink)"/></marker>'  # noqa: E501


class Canvas:
    """Collects shapes; all lengths are pixels. ``title`` is what a screen reader says of the drawing."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{_ARROW}</defs>",
            f'<rect class="page" width="{width}" height="{height}"/>',
        ]

    def text(self, x: int, y: int, text: str, *, anchor: str = "start", kind: str = "") -> None:
        """A line of text whose baseline is at ``y``; ``anchor`` says which end of it is at ``x``."""
        self._lines.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>')

    def box(self, left: int, right: int, top: int, height: int, kind: str, text: str = "") -> None:
        """A filled box with a text in its middle."""
        width = right - left
        self._lines.append(f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="3"/>')
        if text:
            self.text((left + right) // 2, top + height // 2 + 5, text, anchor="middle")

    def line(self, start: tuple[int, int], end: tuple[int, int], kind: str = "line") -> None:
        """A line between two points."""
        self._lines.append(f'<path class="{kind}" d="M{start[0]} {start[1]}L{end[0]} {end[1]}"/>')

    def arrow(self, left: int, right: int, y: int) -> None:
        """An arrow to the right."""
        self.pointer((left, y), (right, y))

    def pointer(self, start: tuple[int, int], end: tuple[int, int], kind: str = "line") -> None:
        """An arrow from one point to another."""
        way = f"M{start[0]} {start[1]}L{end[0]} {end[1]}"
        self._lines.append(f'<path class="{kind}" marker-end="url(#tip)" d="{way}"/>')

    def span(self, left: int, right: int, y: int, text: str) -> None:
        """An arrow with two tips, and what it measures above it."""
        self._lines.append(
            f'<path class="line" marker-start="url(#tip)" marker-end="url(#tip)" d="M{left} {y}L{right} {y}"/>'
        )
        self.text((left + right) // 2, y - 7, text, anchor="middle", kind="strong")

    def svg(self) -> str:
        """The document."""
        return "\n".join([*self._lines, "</svg>"]) + "\n"
