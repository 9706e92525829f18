"""The nine parts, each with its package, and the most lines that it may have."""

from typing import NamedTuple


class Part(NamedTuple):
    """A folder's package; ``wanted_lines`` is what a part that has more is to come down to."""

    package: str
    max_lines: int
    wanted_lines: int


PARTS = {
    "core": Part("forebay", 8_920, 7_850),
    "changelog": Part("forebay_changelog", 6_270, 5_550),
    "client": Part("forebay_client", 3_885, 3_885),
    "web": Part("forebay_web", 6_570, 5_500),
    "console": Part("forebay_console", 1_150, 1_150),
    "service": Part("forebay_worker", 14_765, 12_500),
    "router": Part("forebay_router", 5_500, 5_500),
    "tap": Part("forebay_tap", 5_200, 5_200),
    "spark": Part("forebay_spark", 2_300, 2_300),
}
"""By folder."""
