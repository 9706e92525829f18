"""What is true of a partition's pages together, as a list goes on."""

from forebay.lag import Lag
from forebay.position import Position, encode_position, log_digest
from forebay.routing.scattered_list import PartitionPages
from forebay.wire.scan_pages import SKIPPED_OLD, ScanPage


def test_what_pages_have_left_out_is_counted_together():
    source = {
        "partition": 0,
        "position": encode_position(Position(log_digest("log"), {0: 1})),
        "role": "active",
        "host": "h:1",
        "lag": Lag(0, 0, None).document(),
    }
    part = PartitionPages(0, (None, None))
    for skipped in (2, 0, 3):
        part.take(ScanPage(source={**source, SKIPPED_OLD: skipped}, more=True, last=b"k"), 0.0)
    assert part.source(0.0)[SKIPPED_OLD] == 5
