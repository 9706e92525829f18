"""What a type checker says of a user's program: ``test_public_api`` has mypy read it, and nobody runs it.

A call that mypy must refuse has the error's code beside it: without the error, mypy reports the comment.
"""

from typing import Any, assert_type

from pyspark.sql import DataFrame

from forebay.authentication import Authenticator
from forebay.client import Answer, AsyncClient, Change, Client, Entry, ReadOptions, Window
from forebay.errors import ForebayError, LagExceedsTolerance, Problem, SinkError, UnknownKey
from forebay.lag import Lag
from forebay.partitioning import StreamPartitioner
from forebay.spark import Sink


def read(client: Client) -> None:
    bounds: ReadOptions = {"max_age_ms": 60_000, "prefer": "any"}
    try:
        answer = client.get("orders", ("ann", 7), **bounds)
    except UnknownKey as miss:
        assert_type(miss.lag, Lag | None)
        return
    except (LagExceedsTolerance, ForebayError):
        raise
    assert_type(answer, Answer)
    assert_type(answer.lag.age_ms, int | None)
    client.get("orders", "ann", max_age="60000")  # type: ignore[call-arg]
    client.get("orders", "ann", max_age_ms="60000")  # type: ignore[arg-type]


def lists(client: Client) -> None:
    for entry in client.entries("orders", prefix="a", limit=10):
        assert_type(entry, Entry)
    for window in client.windows("hours", "ann"):
        assert_type(window, Window)
    assert_type(client.get_many("orders", ["ann", "bob"]), list[Answer | Problem])
    with client.changes("orders", "ann") as changes:
        for change in changes:
            assert_type(change, Change)


async def read_without_blocking() -> None:
    async with AsyncClient(["http://router-1:8080"], token="t") as client:
        answer = await client.session().get("orders", "ann")
        assert_type(answer.value, Any)
        async for entry in client.entries("orders"):
            assert_type(entry.key, Any)


def write(frame: DataFrame) -> str | None:
    sink = Sink("topology.toml", changelog="sqlite:///log")
    try:
        sink.write(frame, "orders", key="customer").option("checkpointLocation", "c").start()
    except SinkError:
        return None
    sink.write(frame, "orders")  # type: ignore[call-arg]
    return sink.position("orders")


class ByRegion:
    def partition(self, key: bytes, partitions: int) -> int:
        return int(key[:2]) % partitions


class Everyone:
    def authenticate(self, method: str, path: str, authorization: bytes) -> None:
        pass


partitioner: StreamPartitioner = ByRegion()
authenticator: Authenticator = Everyone()
not_one: Authenticator = ByRegion()  # type: ignore[assignment]
