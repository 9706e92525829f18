"""The hot path: complete, ordinary reads of a key or a batch, handled in the callback that received them.

FastAPI declares every route and can answer everything; the hot path sits in front and handles the two shapes that
make up nearly all traffic. Anything not recognised with certainty falls through to the full parser.
"""

from forebay.hot_path.guard import guarded
from forebay.hot_path.hosts import addressed
from forebay.hot_path.outbox import Slot
from forebay.hot_path.protocol import (
    Handlers,
    HotPathProtocol,
    KeyHandler,
    Outcome,
    left_to_the_route,
    make_protocol,
)
from forebay.hot_path.recogniser import (
    Forms,
    HotBatch,
    HotRequest,
    Recogniser,
    RequestForm,
    recognise,
    recognise_batch,
)

__all__ = [
    "Forms",
    "Handlers",
    "HotBatch",
    "HotPathProtocol",
    "HotRequest",
    "KeyHandler",
    "Outcome",
    "Recogniser",
    "RequestForm",
    "Slot",
    "addressed",
    "guarded",
    "left_to_the_route",
    "make_protocol",
    "recognise",
    "recognise_batch",
]
