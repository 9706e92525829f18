"""Payloads of Protobuf, read by the descriptors that a schema registry has of their files.

A payload begins with the path to its message among those of its file: how many steps, then each step, as zigzag
varints. A zero stands for the first message. JSON is that of Protobuf's own mapping.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

_MAX_MESSAGES = 1_000
"""Whose classes are kept, of one schema."""
_PACKAGES = {"google": "google", "confluent": "confluent_kafka.schema_registry.confluent"}
"""Where files are that come with a package, by how their names begin."""
_MAX_SHIFT = 28


def protobuf_decoder(texts: list[str]) -> Callable[[bytes], bytes]:
    """What reads payloads of the last of some serialized files, each of which may import those before.

    Raises ``TypeError`` if a file imports one that is neither there nor known.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.json_format import MessageToJson
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for text in texts:
        file = FileDescriptorProto.FromString(base64.b64decode(text))
        _add(pool, file)

    @lru_cache(maxsize=_MAX_MESSAGES)
    def class_at(path: tuple[int, ...]) -> Any:
        messages, names = file.message_type, [file.package] if file.package else []
        for step in path:
            names.append(messages[step].name)
            messages = messages[step].nested_type
        return GetMessageClass(pool.FindMessageTypeByName(".".join(names)))

    def decode(payload: bytes) -> bytes:
        path, begin = _path(payload)
        message = class_at(path).FromString(payload[begin:])
        shown = MessageToJson(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            indent=None,
            ensure_ascii=False,
            descriptor_pool=pool,
        )
        return str(shown).encode()

    return decode


def _add(pool: DescriptorPool, file: FileDescriptorProto) -> None:
    """Add a file, after those that it imports of packages that are installed."""
    for name in file.dependency:
        with contextlib.suppress(KeyError):
            pool.FindFileByName(name)
            continue
        root, _, rest = name.removesuffix(".proto").replace("/", ".").partition(".")
        if root not in _PACKAGES:
            raise TypeError(f"it imports {name}, which the registry does not name")
        imported = import_module(f"{_PACKAGES[root]}.{rest}_pb2")
        known = type(file)()
        imported.DESCRIPTOR.CopyToProto(known)
        _add(pool, known)
    pool.Add(file)


def _path(payload: bytes) -> tuple[tuple[int, ...], int]:
    """The path at the beginning of a payload, and where that ends; raises ``IndexError``."""
    count, at = _zigzag(payload, 0)
    steps = []
    for _ in range(count):
        step, at = _zigzag(payload, at)
        steps.append(step)
    return tuple(steps) or (0,), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, _MAX_SHIFT + 1, 7):
        byte = data[at]
        at, number = at + 1, number | (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if number & 1:
        raise ValueError("its path has a negative step")
    return number >> 1, at
