"""Checkpoints as a killed query, a purge, or another attempt leaves them."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest
from xxhash import xxh32_intdigest

from forebay_tap.spark_checkpoint.checkpoint import Checkpoint
from forebay_tap.spark_checkpoint.compression import decompressor
from forebay_tap.spark_checkpoint.errors import (
    CheckpointFileCorrupt,
    CheckpointFormatUnknown,
    CheckpointMissing,
    LineageMismatch,
    StateUnsupported,
    VersionNotCommitted,
    VersionPurged,
)
from forebay_tap.spark_checkpoint.logs import Offsets, parse_offsets

LAST = 5
"""The version that the last batch of the aggregations wrote."""
PARTITION = Path("state/0/0")


def changes(path: Path, version: int) -> list[object]:
    blocks = Checkpoint.open(str(path)).change_blocks(0, 0, version)
    return [change for block in blocks for change in zip(block.kinds, block.keys, block.values, strict=True)]


def snapshot(path: Path, version: int) -> list[str]:
    # As text, in which NaN equals itself.
    return sorted(map(repr, Checkpoint.open(str(path)).snapshot(0, 0, version)))


def lz4_stream(plain: bytes) -> bytes:
    """As lz4-java writes it, with stored blocks."""
    size = len(plain).to_bytes(4, "little")
    checksum = (xxh32_intdigest(plain, 0x9747B28C) & 0xFFFFFFF).to_bytes(4, "little")
    none = bytes(4)
    return b"LZ4Block\x16" + size + size + checksum + plain + b"LZ4Block\x16" + none * 3


@pytest.mark.parametrize("name", ["aggregation-default", "aggregation-changelog", "aggregation-format2"])
def test_a_version_is_final_once_its_batch_is_committed(copied, name):
    path = copied(name)
    (path / "commits" / str(LAST - 1)).unlink()
    with pytest.raises(VersionNotCommitted, match="no commits/4"):
        changes(path, LAST)
    with pytest.raises(VersionNotCommitted, match="no commits/4"):
        snapshot(path, LAST)
    assert changes(path, LAST - 1)
    assert Checkpoint.open(str(path)).batches() == [0, 1, 2, 3]


def test_a_commit_that_is_half_written_is_no_commit(copied):
    path = copied("aggregation-format2")
    (path / "commits/4").write_text('v2\n{"nextBatchWatermarkMs":0,"stateUn')
    with pytest.raises(CheckpointFileCorrupt, match="commits/4 is cut short"):
        changes(path, LAST)
    (path / "commits/4").write_text("")
    with pytest.raises(CheckpointFileCorrupt, match="commits/4 is cut short"):
        changes(path, LAST)


@pytest.mark.parametrize(
    ("name", "suffix"), [("aggregation-default", "delta"), ("aggregation-changelog", "changelog")]
)
def test_every_beginning_of_a_file_of_changes_is_refused(copied, name, suffix):
    path = copied(name)
    file = path / PARTITION / f"3.{suffix}"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointFileCorrupt, match=re.escape(str(PARTITION / f"3.{suffix}"))):
            changes(path, 3)


def test_every_beginning_of_what_is_compressed_is_refused(copied):
    """A stream that is whole, of content that is not."""
    path = copied("ledger-changelog")
    file = path / PARTITION / "3.changelog"
    plain = decompressor("lz4")(file.read_bytes(), "3.changelog")
    file.write_bytes(lz4_stream(plain))
    assert changes(path, 3)
    for length in range(4, len(plain), 7):
        file.write_bytes(lz4_stream(plain[:length]))
        with pytest.raises(CheckpointFileCorrupt):
            changes(path, 3)


@pytest.mark.parametrize("name", ["aggregation-default", "aggregation-changelog", "aggregation-format2"])
def test_changes_that_were_purged_are_named(copied, name):
    path = copied(name)
    for file in (path / PARTITION).glob("2[._]*"):
        file.unlink()
    with pytest.raises(VersionPurged, match=r"state/0/0/2.*minBatchesToRetain"):
        changes(path, 2)
    # Neither does a snapshot after it need it, where there is one in between.
    assert snapshot(path, LAST)
    with pytest.raises(VersionPurged):
        snapshot(path, 2)


def test_a_purged_batch_is_named(copied):
    path = copied("aggregation-format2")
    for batch in (0, 1):
        (path / f"commits/{batch}").unlink()
    with pytest.raises(VersionPurged, match="no commits/1"):
        changes(path, 2)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("aggregation-default", "*.snapshot"), ("aggregation-changelog", "*.zip"), ("aggregation-format2", "*.zip")],
)
def test_a_snapshot_that_cannot_be_read_is_passed_over(copied, name, pattern):
    path = copied(name)
    whole = snapshot(path, LAST)
    files = list((path / PARTITION).glob(pattern))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:-9])
    assert snapshot(path, LAST) == whole


@pytest.mark.parametrize(
    "name", ["aggregation-changelog", "aggregation-format2", "aggregation-format2_rocksdb", "ledger-format2"]
)
@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("damaged", ["", "*.zip"])
def test_snapshot_is_read_without_its_commit(written, tmp_path, name, kept, damaged):
    """Spark keeps the files that later versions need, but not the commits that name them. The changelogs since the
    snapshot have its id, and those before it lead to an earlier one."""
    path = Path(shutil.copytree(written.path(name), tmp_path / name))
    whole = snapshot(path, LAST)
    for batch in range(LAST - kept):
        (path / f"commits/{batch}").unlink()
    if damaged and name != "aggregation-format2_rocksdb":
        newest = max(
            (path / PARTITION).glob(damaged), key=lambda file: int(file.name.partition("_")[0].split(".")[0])
        )
        newest.write_bytes(newest.read_bytes()[:-9])
    assert snapshot(path, LAST) == whole


def test_a_snapshot_without_its_sst_files_is_passed_over(copied):
    path = copied("aggregation-changelog")
    whole = snapshot(path, LAST)
    for file in (path / PARTITION / "SSTs").iterdir():
        file.unlink()
    assert snapshot(path, LAST) == whole


def test_the_only_snapshot_is_missed_when_it_cannot_be_read(copied):
    path = copied("aggregation-rocksdb")
    for file in (path / PARTITION / "SSTs").iterdir():
        file.unlink()
    with pytest.raises(CheckpointFileCorrupt, match=r"needs state/0/0/SSTs/.*, which is missing"):
        snapshot(path, LAST)


def test_another_attempts_file_is_not_read(copied):
    path = copied("aggregation-format2")
    whole = changes(path, LAST)
    [file] = (path / PARTITION).glob(f"{LAST}_*.changelog")
    other = file.with_name(f"{LAST}_00000000-0000-0000-0000-000000000000.changelog")
    other.write_bytes(b"whatever a killed attempt left")
    assert repr(changes(path, LAST)) == repr(whole)
    file.unlink()
    with pytest.raises(VersionPurged, match=re.escape(file.name)):
        changes(path, LAST)


def test_a_file_that_continues_another_lineage_is_refused(copied):
    path = copied("aggregation-format2")
    document = json.loads((path / "commits/3").read_text().partition("\n")[2])
    file = next((path / PARTITION).glob("4_*.changelog"))
    other = "00000000-0000-0000-0000-000000000000"
    document["stateUniqueIds"]["0"][0][0] = other
    (path / "commits/3").write_text("v2\n" + json.dumps(document))
    file.rename(file.with_name(f"4_{other}.changelog"))
    with pytest.raises(LineageMismatch, match=f"but {other} is committed as 4"):
        changes(path, LAST)


@pytest.mark.parametrize(
    ("file", "content", "error", "message"),
    [
        ("commits/4", 'v3\n{"nextBatchWatermarkMs":0}', CheckpointFormatUnknown, "commits/4 has format v3"),
        ("offsets/4", 'v9\n{}\n{"logOffset":1}', CheckpointFormatUnknown, "offsets/4 has format v9"),
        ("state/0/_metadata/metadata", "v3\n{}", CheckpointFormatUnknown, "metadata has format 'v3'"),
        ("state/0/_metadata/metadata", 'v1\n{"operat', CheckpointFileCorrupt, "metadata is cut short"),
        ("state/0/_metadata/metadata", "v1\n{}", CheckpointFileCorrupt, "does not describe an operator"),
        ("state/0/0/_metadata/schema", "\0\2v8", CheckpointFormatUnknown, "schema format 'v8'"),
        ("state/0/0/_metadata/schema", "\0\2v2\0\0", CheckpointFileCorrupt, "schema is cut short"),
        ("metadata", "{}", CheckpointFileCorrupt, "metadata is cut short"),
    ],
)
def test_unknown_formats_and_truncated_files_are_named(copied, file, content, error, message):
    path = copied("aggregation-format2" if file == "commits/4" else "aggregation-default")
    (path / file).write_text(content)
    with pytest.raises(error, match=message):
        changes(path, LAST)


def test_a_changelog_of_a_later_format_is_named(copied):
    path = copied("ledger-changelog")
    (path / PARTITION / "3.changelog").write_bytes(lz4_stream(b"\0\2v5" + bytes(8)))
    with pytest.raises(CheckpointFormatUnknown, match=r"3\.changelog has changelog format 5"):
        changes(path, 3)


@pytest.mark.parametrize(
    ("setting", "value", "error", "message"),
    [
        ("providerClass", "com.example.OwnProvider", StateUnsupported, "com.example.OwnProvider"),
        ("compression.codec", "lzf", StateUnsupported, "'lzf'.*only lz4, zstd, snappy"),
        ("rowChecksum.enabled", "true", StateUnsupported, "rowChecksum.enabled=false"),
        ("encodingFormat", "avro", StateUnsupported, "encodingFormat=unsaferow"),
        ("rocksdb.mergeOperatorVersion", "3", CheckpointFormatUnknown, "version 3 of RocksDB's merge operator"),
    ],
)
def test_settings_that_are_not_decoded_are_named(copied, setting, value, error, message):
    path = copied("aggregation-default")
    head, metadata, *sources = (path / "offsets/4").read_text().split("\n")
    document = json.loads(metadata)
    document["conf"][f"spark.sql.streaming.stateStore.{setting}"] = value
    (path / "offsets/4").write_text("\n".join([head, json.dumps(document), *sources]))
    with pytest.raises(error, match=message):
        changes(path, LAST)


def test_an_operator_is_read_as_its_batch_found_it(copied):
    path = copied("ledger-changelog")
    file = path / "state/0/_metadata/v2/3"
    file.write_text(file.read_text().replace("ProcessingTime", "EventTime"))
    (path / "state/0/_metadata/v2/4").unlink()
    checkpoint = Checkpoint.open(str(path))
    times = [dict(checkpoint.operator(0, batch).properties)["timeMode"] for batch in (1, 2, 3, 4)]
    assert times == ["ProcessingTime", "ProcessingTime", "EventTime", "EventTime"]


def test_column_family_that_no_snapshot_numbers_is_named(copied):
    path = copied("ledger-changelog")
    for file in (path / PARTITION).glob("*.zip"):
        file.unlink()
    with pytest.raises(CheckpointFileCorrupt, match=r"column family \d+, which no snapshot in state/0/0 names"):
        changes(path, 1)


def test_the_ends_of_sources_by_position_and_by_name():
    head = '{"batchWatermarkMs":5,"batchTimestampMs":6,"conf":{"a":"b"}}'
    by_position = parse_offsets(f'v1\n{head}\n{{"logOffset":3}}\n-'.encode(), "offsets/7")
    assert by_position.sources == {"0": '{"logOffset":3}', "1": None}
    assert (by_position.watermark_ms, by_position.started_ms) == (5, 6)
    assert by_position.conf == {"a": "b"}
    by_name = parse_offsets(f'v2\n{head}\norders:{{"t":{{"0":3}}}}\nusers:-'.encode(), "offsets/7")
    assert by_name.sources == {"orders": '{"t":{"0":3}}', "users": None}


def test_a_codec_may_be_named_by_its_class(copied):
    path = copied("aggregation-zstd")
    whole = repr(changes(path, LAST))
    offsets = (path / "offsets/4").read_text()
    (path / "offsets/4").write_text(offsets.replace('"zstd"', '"org.apache.spark.io.ZStdCompressionCodec"'))
    assert repr(changes(path, LAST)) == whole


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointMissing, match="no file 'metadata'"):
        Checkpoint.open(str(tmp_path))


def test_missing_operator_partition_or_store_is_named(spark_4_0):
    checkpoint = spark_4_0.checkpoint("aggregation-default")
    with pytest.raises(CheckpointMissing, match="no such operator"):
        list(checkpoint.change_blocks(7, 0, 1))
    with pytest.raises(CheckpointMissing, match="no partition 2"):
        list(checkpoint.change_blocks(0, 2, 1))
    with pytest.raises(CheckpointMissing, match="no store 'left'"):
        list(checkpoint.change_blocks(0, 0, 1, "left"))


def test_rows_with_checksums_are_recognised_without_the_setting(copied):
    """Spark 4.1 has row checksums, but does not note the setting."""
    path = copied("aggregation-default")
    key, value = bytes(16), b"crc!" + bytes(16)
    record = len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value
    (path / PARTITION / "3.delta").write_bytes(lz4_stream(record + b"\xff" * 4))
    with pytest.raises(CheckpointFileCorrupt, match=r"rowChecksum\.enabled"):
        changes(path, 3)


def test_a_stream_of_snappy_that_is_cut_short_is_refused(copied):
    path = copied("aggregation-snappy")
    file = path / PARTITION / "3.delta"
    whole = file.read_bytes()
    for length in (0, 10, 18, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointFileCorrupt, match=r"3\.delta"):
            changes(path, 3)


def test_a_flipped_bit_in_lz4_changes_no_row_without_a_word(copied):
    path = copied("aggregation-changelog")
    file = path / PARTITION / "3.changelog"
    whole, rows = file.read_bytes(), repr(changes(path, 3))
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with contextlib.suppress(CheckpointFileCorrupt, CheckpointFormatUnknown):
            # As text, in which NaN equals itself.
            assert repr(changes(path, 3)) == rows, f"byte {at}"


def test_a_topic_that_two_sources_read_is_read_to_the_lesser_end():
    """As in a union or a join of a topic with itself."""
    ends = {"0": '{"a":{"0":10,"1":7}}', "1": '{"a":{"0":1000,"1":7},"b":{"0":3}}'}
    for sources in (ends, dict(reversed(ends.items()))):
        read_to = Offsets(0, 0, {}, sources).kafka_offsets()
        assert read_to == {("a", 0): 10, ("a", 1): 7, ("b", 0): 3}
