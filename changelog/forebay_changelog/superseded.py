"""The refusal of a writer whose name another has taken over.

Imports nothing: the Spark sink ships this module to executors that may lack forebay.
"""

from __future__ import annotations


def superseded(writer: str, query_id: str) -> str:
    """What happened to a query that writes under a name, and the remedy. That of a tap names the copy, too."""
    checkpoint_id, _, copy = query_id.partition("/")
    if copy:
        return (
            f"Two queries write as {writer!r}: this tap of query {checkpoint_id} was superseded by another tap or "
            "a sink. Stop one of them, or give each a store of its own. If the other is gone for good, start this "
            "tap again."
        )
    return (
        f"Two queries write as {writer!r}: query {query_id} was superseded by another. Stop one of them, or give "
        "each its own writer=. If the other is gone for good: forebay changelog retire-writer."
    )
