"""What happens when a worker dies: KIP-535's moments t0 to t5, and what reads get between them."""

from __future__ import annotations

from docs.drawings.canvas import Canvas

from forebay.settings import SETTINGS

_LEFT, _RIGHT = 190, 900
_MOMENTS = {
    "t0": (190, "A is active"),
    "t1": (290, "A answers"),
    "t2": (400, "A is killed"),
    "t3": (590, "B is assigned"),
    "t4": (700, "B at the end"),
    "t5": (790, "B active"),
}
_TOP, _LANE, _BAR = 70, 46, 30


def failover_svg() -> str:
    """The drawing."""
    at = {name: x for name, (x, _) in _MOMENTS.items()}
    killed, assigned, caught_up, active = at["t2"], at["t3"], at["t4"], at["t5"]
    canvas = Canvas(
        920, 416, "What each replica does, and what reads get, from before a worker's death until after it"
    )
    for name, (x, what) in _MOMENTS.items():
        canvas.line((x, 46), (x, 350), "grid")
        canvas.text(x + 3, 22, name, kind="strong")
        canvas.text(x + 3, 39, what, kind="dim")
    lanes = [
        ("worker A", [(_LEFT, killed, "good", "active"), (killed, _RIGHT, "bad", "gone")]),
        (
            "worker B",
            [
                (_LEFT, assigned, "other", "standby"),
                (assigned, active, "wait", "restoring"),
                (active, _RIGHT, "good", "active"),
            ],
        ),
        (
            "reads within B's lag",
            [
                (_LEFT, killed, "good", "200, role active"),
                (killed, assigned, "other", "200, role standby"),
                (assigned, active, "wait", "200, restoring"),
                (active, _RIGHT, "good", "200, active"),
            ],
        ),
        ("reads beyond B's lag", [*_refused(killed, caught_up, "412 lag-exceeds-tolerance")]),
        ("require_active=true", [*_refused(killed, active, "412 not-active")]),
        ("without KIP-535", [*_refused(killed, active, "fail")]),
    ]
    for number, (name, bars) in enumerate(lanes):
        top = _TOP + number * _LANE
        canvas.text(12, top + 20, name)
        for left, right, kind, text in bars:
            canvas.box(left + 1, right - 1, top, _BAR, kind, text)
    session_s = next(s.default for s in SETTINGS if s.name == "session_timeout_ms") // 1000
    canvas.span(killed, assigned, 380, f"A's lease, {session_s} s")
    canvas.span(assigned, active, 380, "0 s if B has caught up")
    canvas.text(_LEFT, 406, "The lengths are not to scale.", kind="dim")
    return canvas.svg()


def _refused(begin: int, end: int, text: str) -> list[tuple[int, int, str, str]]:
    """A lane that is answered but for an interval."""
    return [(_LEFT, begin, "good", "200"), (begin, end, "bad", text), (end, _RIGHT, "good", "200")]
