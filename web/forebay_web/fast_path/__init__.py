"""The fast path: complete, ordinary reads of a key or a batch, handled in the callback that received them.

FastAPI declares every route and can answer everything; the fast path sits in front and handles the two shapes that
make up nearly all traffic. Anything not recognised with certainty falls through to the full parser.
"""

from forebay_web.fast_path.guard import addressed, guarded
from forebay_web.fast_path.pending import OPEN, PendingResponse
from forebay_web.fast_path.protocol import (
    FastPathProtocol,
    Handlers,
    KeyHandler,
    Outcome,
    left_to_slow_path,
    make_protocol,
)
from forebay_web.fast_path.recogniser import (
    PreparedRequests,
    RecognisedBatch,
    RecognisedRead,
    Recogniser,
    RequestTemplate,
    recognise,
    recognise_batch,
)

__all__ = [
    "OPEN",
    "FastPathProtocol",
    "Handlers",
    "KeyHandler",
    "Outcome",
    "PendingResponse",
    "PreparedRequests",
    "RecognisedBatch",
    "RecognisedRead",
    "Recogniser",
    "RequestTemplate",
    "addressed",
    "guarded",
    "left_to_slow_path",
    "make_protocol",
    "recognise",
    "recognise_batch",
]
