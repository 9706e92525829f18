"""Several rows of one key in a batch, of which nothing determines the latest.

Imports only the standard library, pyarrow and modules that do the same: it is pickled by value, so that executors
do not need forebay.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from forebay.record_orders import split_order
from forebay_changelog.sqlite.log_file import WriteRefused


def first_repeated(keys: Any, values: Any, previous: tuple[bytes, bytes | None] | None, latest: bool) -> Any:
    """The first key that is equal to the one before it; equal keys belong to one partition.

    ``previous`` is the row before all of these. Equal rows of one order are no repetition: sources deliver again.
    """
    first = keys[0].as_py(), values[0].as_py()
    if previous is not None and first[0] == previous[0] and not (latest and first == previous):
        return first[0]
    repeated = pc.equal(keys[1:], keys[:-1])
    if latest:
        differs = pc.fill_null(pc.not_equal(values[1:], values[:-1]), True)
        both_null = pc.and_(pc.is_null(values[1:]), pc.is_null(values[:-1]))
        repeated = pc.and_(repeated, pc.and_not(differs, both_null))
    found = pc.index(repeated, True).as_py()
    return keys[found].as_py() if found >= 0 else None


def several_rows(key: bytes, batch_id: int, write_name: str, latest: bool) -> WriteRefused:
    """The refusal of a batch with rows of one key that nothing orders."""
    same = ""
    if latest:
        key, order = split_order(key)
        same = f" with the order {order}"
    return WriteRefused(
        f"Batch {batch_id} has more than one row for the key {key!r} of {write_name!r}{same}, "
        "and nothing determines which is the latest. Give the sink order_by=, or aggregate by the key."
    )
