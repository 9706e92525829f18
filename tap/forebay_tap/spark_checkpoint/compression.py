"""The streams in which Spark compresses the files of state."""

from __future__ import annotations

import struct
from collections.abc import Callable
from importlib import import_module
from typing import Any

from forebay_tap.spark_checkpoint.errors import CheckpointError, CheckpointFileCorrupt, StateUnsupported

_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiii")
_LZ4_STORED = 0x10
_LZ4_SEED, _LZ4_CHECKSUM = 0x9747B28C, 0x0FFF_FFFF
"""lz4-java checks the plain bytes of a block by XXH32, of which it keeps 28 bits."""
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER_BYTES = 16
_SIZE = struct.Struct(">i")


def decompressor(codec: str) -> Callable[[bytes, str], bytes]:
    """The function of a file's bytes and name that gives the plain bytes.

    ``codec`` is a value of ``spark.sql.streaming.stateStore.compression.codec``. Raises ``StateUnsupported`` for
    one that is not decoded; the function raises ``CheckpointFileCorrupt``.
    """
    name = codec.rpartition(".")[2].removesuffix("CompressionCodec").lower()
    try:
        decompress = _DECOMPRESSORS[name]
    except KeyError:
        message = f"State compressed with {codec!r} is not decoded, only {', '.join(_DECOMPRESSORS)}."
        remedy = "Set spark.sql.streaming.stateStore.compression.codec to one of them, with a new checkpoint."
        raise StateUnsupported(f"{message} {remedy}") from None

    def plain(data: bytes, file: str) -> bytes:
        try:
            return decompress(data)
        except _Damaged as error:
            raise CheckpointFileCorrupt(f"{file} is no whole {name} stream: {error}. {_REMEDY}") from error

    return plain


_REMEDY = "Restore the file, or start from a later snapshot."


class _Damaged(ValueError):
    pass


def _lz4(data: bytes) -> bytes:
    """The stream of lz4-java's ``LZ4BlockOutputStream``: blocks with a header each, an empty one at the end."""
    codec, checksum = _library("cramjam").lz4, _library("xxhash").xxh32_intdigest
    plain: list[bytes] = []
    at = 0
    while True:
        if len(data) < at + _LZ4_HEADER.size:
            raise _Damaged(f"it ends within a header, at {len(data)} bytes")
        magic, token, packed, size, expected = _LZ4_HEADER.unpack_from(data, at)
        if magic != _LZ4_MAGIC:
            raise _Damaged(f"no block begins at {at}")
        at += _LZ4_HEADER.size
        if size == 0:
            return b"".join(plain)
        block = data[at : at + packed]
        if len(block) < packed:
            raise _Damaged(f"it ends within a block, at {len(data)} bytes")
        at += packed
        stored = token & 0xF0 == _LZ4_STORED
        content = block if stored else _block(codec.decompress_block, block, output_len=size)
        if checksum(content, _LZ4_SEED) & _LZ4_CHECKSUM != expected:
            raise _Damaged(f"the checksum of the block before {at} is another")
        plain.append(content)


def _snappy(data: bytes) -> bytes:
    """The stream of snappy-java's ``SnappyOutputStream``: a header, then blocks, each after its size."""
    if data[: len(_SNAPPY_MAGIC)] != _SNAPPY_MAGIC:
        raise _Damaged("it has no header")
    codec = _library("cramjam").snappy
    plain: list[bytes] = []
    at = _SNAPPY_HEADER_BYTES
    while at < len(data):
        if len(data) < at + _SIZE.size:
            raise _Damaged(f"it ends within a size, at {len(data)} bytes")
        (packed,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        block = data[at : at + packed]
        if packed < 0 or len(block) < packed:
            raise _Damaged(f"it ends within a block, at {len(data)} bytes")
        at += packed
        plain.append(_block(codec.decompress_raw, block))
    return b"".join(plain)


def _zstd(data: bytes) -> bytes:
    return _block(_library("cramjam").zstd.decompress, data)


def _block(decompress: Callable[..., bytes], data: bytes, **arguments: int) -> bytes:
    try:
        return bytes(decompress(data, **arguments))
    except _library("cramjam").DecompressionError as error:
        raise _Damaged(str(error)) from error


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        message = f"Reading a checkpoint needs {name}: install it, or forebay with the extra 'tap'."
        raise CheckpointError(message) from error


_DECOMPRESSORS = {"lz4": _lz4, "zstd": _zstd, "snappy": _snappy}
