"""The hot path: whole, ordinary reads of a key, or of a batch of them, taken in the callback that received them.

FastAPI declares every route and answers everything; this stands in front of it and takes the two shapes that
make up nearly all traffic. Anything it does not recognise with certainty falls through to the full parser.
"""

from forebay.hot_path.guard import guarded
from forebay.hot_path.outbox import Slot
from forebay.hot_path.protocol import Handlers, HotPathProtocol, Outcome, make_protocol
from forebay.hot_path.recogniser import HotBatch, HotRequest, Recogniser, RequestForm, recognise, recognise_batch

__all__ = [
    "Handlers",
    "HotBatch",
    "HotPathProtocol",
    "HotRequest",
    "Outcome",
    "Recogniser",
    "RequestForm",
    "Slot",
    "guarded",
    "make_protocol",
    "recognise",
    "recognise_batch",
]
