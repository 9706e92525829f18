"""The hot path: whole, ordinary single-key GETs answered in the same callback that received them.

FastAPI declares every route and answers everything; this stands in front of it and takes the one shape that
makes up nearly all traffic. Anything it does not recognise with certainty falls through to the full parser.
"""

from forebay.hot_path.guard import guarded
from forebay.hot_path.protocol import HotPathProtocol, Slot, make_protocol
from forebay.hot_path.recogniser import HotRequest, Recogniser, RequestForm, recognise

__all__ = [
    "HotPathProtocol",
    "HotRequest",
    "Recogniser",
    "RequestForm",
    "Slot",
    "guarded",
    "make_protocol",
    "recognise",
]
