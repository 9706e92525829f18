"""Files of records are read block by block, whatever sizes follow each other."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_tap.spark_checkpoint.errors import CheckpointFileCorrupt
from forebay_tap.spark_checkpoint.records import ChangelogFile, Record, blocks, changelog_blocks

CODES = {"put": 0x01, "delete": 0x10, "merge": 0x11}
repeatable = settings(derandomize=True, deadline=None, max_examples=100)

one = st.builds(
    lambda kind, key, value: Record(kind, key, None if kind == "delete" else value),
    st.sampled_from(["put", "put", "put", "delete", "merge"]),
    st.binary(max_size=3),
    st.binary(max_size=3),
)
"""Short ones, so that sizes are often those of the record before."""
several = st.lists(st.tuples(one, st.sampled_from([1, 2, 2100])), max_size=8).map(
    lambda runs: [record for record, count in runs for _ in range(count)]
)
"""More of one size than a block has, among others."""


def sized(part: bytes | None) -> bytes:
    return struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part


def file_of(records: list[Record], *, has_kinds: bool) -> bytes:
    parts = (
        (bytes([CODES[kind]]) if has_kinds else b"") + sized(key) + sized(value) for kind, key, value in records
    )
    return b"".join(parts) + (b"\x00" if has_kinds else sized(None))


@repeatable
@given(several)
def test_blocks_have_every_record_in_order(records):
    file = file_of(records, has_kinds=True)
    found = [
        record for block in changelog_blocks(file, ChangelogFile(2, None, 0), "f") for record in block.records()
    ]
    assert found == records


@repeatable
@given(several)
def test_blocks_of_a_file_without_kinds(records):
    puts_and_deletes = [record for record in records if record.kind != "merge"]
    file = file_of(puts_and_deletes, has_kinds=False)
    assert [record for block in blocks(file, "f") for record in block.records()] == puts_and_deletes


@repeatable
@given(st.lists(one, min_size=1, max_size=6), st.booleans(), st.data())
def test_a_file_that_is_cut_short_is_refused(records, has_kinds, data):
    if not has_kinds:
        records = [record for record in records if record.kind != "merge"]
    file = file_of(records, has_kinds=has_kinds)
    shorter = file[: data.draw(st.integers(0, len(file) - 1))]
    with pytest.raises(CheckpointFileCorrupt, match="f is cut short"):
        list(changelog_blocks(shorter, ChangelogFile(2 if has_kinds else 1, None, 0), "f"))
