"""Topic ids, from a client that never lets go of those it returns.

With each description of a topic, confluent-kafka keeps a reference too many to the topic's id: its ``Admin.c``
does not release what ``c_Uuid_to_py`` made. A worker asks for the descriptions of all its topics every second, so
with 30 of them it would lose 280 MB a day, in objects that every full garbage collection has to visit.
"""

from __future__ import annotations

import ctypes
import sys
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

_NEWEST_THAT_KEEPS = (2, 16)
_KEEPS = tuple(map(int, version("confluent-kafka").split(".")[:2])) <= _NEWEST_THAT_KEEPS
_give_back = ctypes.pythonapi.Py_DecRef
_give_back.argtypes = [ctypes.py_object]
_give_back.restype = None


def topic_id(description: Any) -> str:
    """The id in the description of a topic; the client's surplus reference to it is given back."""
    if _KEEPS and _references(description) > _DUE_REFERENCES:
        _give_back(description.topic_id)
    return str(description.topic_id)


def _references(description: Any) -> int:
    """How many there are to the id, as Python counts them here."""
    found = description.topic_id
    return sys.getrefcount(found)


_DUE_REFERENCES = _references(SimpleNamespace(topic_id=object()))
