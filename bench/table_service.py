"""The service of ``TableService.java``: a Kafka topic as a table of Kafka Streams, read by key over HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.credentials import AUTHORIZATION
from bench.deployment import ask
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from examples.jvm import java
from tests.support.cluster import free_port, wait_until

_ROOT = Path(__file__).parents[1]
_JARS = _ROOT / ".jars" / "kafka-streams"
_THREADS = 2
_SESSION_TIMEOUT_MS = 6_000


@dataclass(frozen=True)
class Restoration:
    """How much was restored from the topic, and how long it took from the first partition's start."""

    partitions: int
    records: int
    seconds: float


def compiled(directory: Path) -> Path:
    """The directory of its classes, below the one given."""
    subprocess.run([_ROOT / "scripts" / "jars" / "fetch", "kafka-streams"], check=True)
    classes = directory / "classes"
    # For any Java that may run it: the compiler's may be a later one.
    command = ["javac", "--release", "17", "-cp", f"{_JARS}/*", "-d", str(classes)]
    subprocess.run([*command, str(Path(__file__).with_name("TableService.java"))], check=True)
    return classes


class TableService:
    """The service as a process over one topic, with its state in a directory.

    Two threads process tasks, and two more restore them, on 2 cores; one answers requests, or so many ``readers``
    look up the keys. As a static member of its group it may be killed and get its tasks back without waiting for
    its old session to end.
    """

    def __init__(
        self, classes: Path, directory: Path, brokers: str, topic: str, partitions: int, readers: int = 0
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.partitions = partitions
        group = directory.name
        _commit_ends(brokers, group, topic, partitions)
        properties = {
            "bootstrap.servers": brokers,
            "application.id": group,
            "application.server": self.address,
            "state.dir": str(directory),
            "num.stream.threads": _THREADS,
            "group.instance.id": "bench",
            "session.timeout.ms": _SESSION_TIMEOUT_MS,
            # The table is restored from the topic itself, not from a copy.
            "topology.optimization": "all",
        }
        self._command = [java(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", f"-Dreaders={readers}"]
        self._command += ["-Dorg.jboss.logging.provider=slf4j", "-cp", f"{classes}:{_JARS}/*", "TableService"]
        self._command += [self.address.rpartition(":")[2], topic, AUTHORIZATION]
        self._command += [f"{name}={value}" for name, value in properties.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TableService:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGTERM)

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, within: Callable[[Sequence[str]], list[str]] = list) -> None:
        """Start it, by the command that ``within`` makes of its own, and wait for nothing."""
        self._process = subprocess.Popen(within(self._command), stdin=subprocess.DEVNULL)

    def end(self, number: signal.Signals) -> None:
        """Send it a signal that ends it."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(120)
        self._process = None

    def restored(self, sample: Callable[[], object] = lambda: None, deadline_s: float = 120) -> Restoration:
        """Wait until every partition is, calling ``sample`` again and again meanwhile."""
        found: list[Restoration] = []

        def every_partition() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, "it ended"
            sample()
            status, body = ask(self.address, "/restoration")
            found[:] = [Restoration(**json.loads(body))] if status == 200 else []
            return bool(found) and found[0].partitions == self.partitions

        wait_until(every_partition, "the restoration of Kafka Streams", deadline_s)
        return found[0]


def _commit_ends(brokers: str, group: str, topic: str, partitions: int) -> None:
    """Kafka Streams restores a table from its own topic up to what its group has committed."""
    of_group = {"bootstrap.servers": brokers, "group.id": group}
    consumer = Consumer(of_group)
    parts = [TopicPartition(topic, partition) for partition in range(partitions)]
    ends = [TopicPartition(p.topic, p.partition, consumer.get_watermark_offsets(p)[1]) for p in parts]
    consumer.close()
    admin = AdminClient({"bootstrap.servers": brokers})
    [committed] = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, ends)]).values()
    committed.result(30)
