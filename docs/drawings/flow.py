"""The way of a stream's state from Spark to its readers."""

from __future__ import annotations

from docs.drawings.canvas import Canvas

_WIDTH, _GAP, _TOP, _HEIGHT = 170, 26, 16, 34
_STATIONS = (
    ("Spark", "wait", ("any stateful query,", "through the sink", "or its checkpoint")),
    ("changelog", "other", ("Kafka topics, or a", "SQLite log on one", "machine")),
    ("workers", "good", ("each task in RocksDB:", "active, restoring", "or standby")),
    ("routers", "good", ("StreamsMetadata,", "tolerance, fail-over,", "hedging")),
    ("clients", "wait", ("dashboards and", "services, over REST", "or from Python")),
)


def flow_svg() -> str:
    """The drawing."""
    canvas = Canvas(
        974, 196, "Spark writes a changelog, workers keep it, routers ask workers, clients ask routers"
    )
    for number, (name, kind, lines) in enumerate(_STATIONS):
        left = 6 + number * (_WIDTH + _GAP)
        canvas.box(left, left + _WIDTH, _TOP, _HEIGHT, kind, name)
        for row, line in enumerate(lines):
            canvas.text(left + 4, _TOP + _HEIGHT + 20 + 17 * row, line, kind="dim")
        if number + 1 < len(_STATIONS):
            canvas.arrow(left + _WIDTH + 2, left + _WIDTH + _GAP - 2, _TOP + _HEIGHT // 2)
    workers = 6 + 2 * (_WIDTH + _GAP)
    canvas.box(workers, workers + _WIDTH, 142, _HEIGHT, "other", "worker group")
    canvas.text(workers + _WIDTH + 10, 164, "which worker holds which task", kind="dim")
    canvas.line((workers + _WIDTH // 2, 108), (workers + _WIDTH // 2, 140))
    return canvas.svg()
