"""Kafka on this machine, of one broker or several, for demos, tests and benchmarks."""

from __future__ import annotations

import base64
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from examples.jvm import KAFKA_JARS, java, kafka_classes
from examples.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
BEGINNINGS_PUT_DOWN_MS = 500
"""How often a broker puts down where its logs begin; by default each minute."""
_START_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 20.0

_CONFIG = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=CLIENTS://127.0.0.1:{port},BROKER://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENTS://127.0.0.1:{advertised_port},BROKER://127.0.0.1:{broker_port}
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
listener.security.protocol.map=CLIENTS:{protocol},BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/logs
auto.create.topics.enable=false
num.partitions=1
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions={replicas}
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.retention.check.interval.ms=1000
log.flush.start.offset.checkpoint.interval.ms={beginnings_put_down_ms}
"""


@dataclass(frozen=True)
class _Place:
    """A broker's place in its cluster."""

    number: int
    port: int
    advertised_port: int
    """Where clients reach it, if something stands between."""
    broker_port: int
    controller_ports: tuple[int, ...]
    """Of all of the cluster's, in the order of their numbers."""
    cluster_id: str


class Broker:
    """One KRaft broker, combined with its controller, keeping its data in ``directory``.

    ``protocol`` is the clients' protocol, ``options`` are those of their listener, and ``users`` are names and
    passwords for SCRAM-SHA-512. ``place`` is its place in a cluster of several. ``java_options`` are further ones
    of its JVM. Starting it raises ``FileNotFoundError`` without Java or Maven, and ``RuntimeError`` if it does not
    come up.
    """

    def __init__(
        self,
        directory: Path,
        protocol: str = "PLAINTEXT",
        options: Mapping[str, object] = MappingProxyType({}),
        users: Mapping[str, str] = MappingProxyType({}),
        place: _Place | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._users = users
        self._java_options = java_options
        self._process: subprocess.Popen[bytes] | None = None
        self._place = place or _places(1)[0]
        count = len(self._place.controller_ports)
        self.address = f"127.0.0.1:{self._place.advertised_port}"
        self.inner_address = f"127.0.0.1:{self._place.broker_port}"
        """Where brokers, and clients too, reach it past whatever stands before its port."""
        self._config = directory / "server.properties"
        directory.mkdir(parents=True, exist_ok=True)
        config = _CONFIG.format(
            beginnings_put_down_ms=BEGINNINGS_PUT_DOWN_MS,
            port=self._place.port,
            advertised_port=self._place.advertised_port,
            broker_port=self._place.broker_port,
            controller_port=self._place.controller_ports[self._place.number - 1],
            number=self._place.number,
            voters=",".join(
                f"{number}@127.0.0.1:{port}" for number, port in enumerate(self._place.controller_ports, 1)
            ),
            replicas=count,
            in_sync=count // 2 + 1,
            protocol=protocol,
            directory=directory.absolute(),
        )
        config += "".join(f"listener.name.clients.{name}={value}\n" for name, value in options.items())
        self._config.write_text(config)

    @property
    def url(self) -> str:
        """The changelog URL."""
        return f"kafka://{self.address}"

    @property
    def pid(self) -> int:
        """The broker's process id, while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the broker, with its previous data, and wait until it answers."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it, and wait for nothing: of several brokers, none answers before most of them run."""
        _need(java())
        _need("mvn")
        subprocess.run([ROOT / "scripts" / "jars" / "fetch", "kafka"], check=True)
        if not (self.directory / "logs" / "meta.properties").exists():
            # With an equals sign, since one id in 64 begins with a hyphen.
            arguments = ["format", f"--cluster-id={self._place.cluster_id}", "--config", str(self._config)]
            for name, password in self._users.items():
                arguments += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
            self._java("kafka.tools.StorageTool", *arguments).wait()
        self._process = self._java("kafka.Kafka", str(self._config))

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + _START_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log = (self.directory / "broker.log").read_text(errors="replace")
                raise RuntimeError(f"The Kafka broker did not come up:\n{log[-2000:]}")
            time.sleep(0.05)

    def ensure_started(self) -> None:
        """Start it unless it runs."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        """Shut the broker down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._place.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        if kafka_classes().exists():
            options.append(f"-XX:SharedArchiveFile={kafka_classes()}")
        with (self.directory / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [java(), *options, *self._java_options, "-cp", f"{KAFKA_JARS}/*", *arguments],
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )


class Brokers:
    """Several brokers, each also a controller, that keep every topic on all of them unless told otherwise.

    ``before`` is called with each one's port, and returns the port at which clients are to reach it.
    """

    def __init__(self, directory: Path, count: int, before: Callable[[int], int] = lambda port: port) -> None:
        self.brokers = [
            Broker(directory / f"broker-{place.number}", place=place) for place in _places(count, before)
        ]

    @property
    def url(self) -> str:
        """The changelog URL."""
        return "kafka://" + ",".join(broker.address for broker in self.brokers)

    @property
    def inner_url(self) -> str:
        """The changelog URL of clients that pass by whatever stands before the brokers' ports."""
        return "kafka://" + ",".join(broker.inner_address for broker in self.brokers)

    def __enter__(self) -> Brokers:
        try:
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        for broker in self.brokers:
            broker.kill()


def _places(count: int, before: Callable[[int], int] = lambda port: port) -> list[_Place]:
    ports = free_ports(3 * count)
    controller_ports = tuple(ports[2 * count :])
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return [
        _Place(i + 1, ports[i], before(ports[i]), ports[count + i], controller_ports, cluster_id)
        for i in range(count)
    ]


def _need(command: str) -> None:
    if shutil.which(command) is None:
        raise FileNotFoundError(f"Kafka needs {command!r} here, which is not on the PATH.")
