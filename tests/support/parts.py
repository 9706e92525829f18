"""The nine parts, each with its package and the most lines that it may have."""

from typing import NamedTuple


class Part(NamedTuple):
    """A folder's package."""

    package: str
    most_lines: int


PARTS = {
    "core": Part("forebay", 7_500),
    "changelog": Part("forebay_changelog", 5_200),
    "client": Part("forebay_client", 3_900),
    "web": Part("forebay_web", 5_500),
    "console": Part("forebay_console", 1_150),
    "service": Part("forebay_worker", 12_300),
    "router": Part("forebay_router", 5_500),
    "tap": Part("forebay_tap", 5_200),
    "spark": Part("forebay_spark", 3_300),
}
"""By folder."""
