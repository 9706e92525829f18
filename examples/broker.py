"""A single-node Kafka broker on this machine, for demos, tests and benchmarks."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

ROOT = Path(__file__).resolve().parents[1]
_JARS = ROOT / ".jars" / "kafka"
_START_DEADLINE_S = 60.0
_STOP_DEADLINE_S = 20.0

_CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=CLIENTS://127.0.0.1:{port},BROKER://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=CLIENTS://127.0.0.1:{port},BROKER://127.0.0.1:{broker_port}
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
listener.security.protocol.map=CLIENTS:{protocol},BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}/logs
auto.create.topics.enable=false
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.retention.check.interval.ms=1000
"""


def spark_connector() -> str:
    """Spark's Kafka connector, in the form of ``spark.jars``; raises ``FileNotFoundError`` without Maven."""
    _need("mvn")
    subprocess.run([ROOT / "scripts" / "jars" / "fetch", "spark-kafka"], check=True)
    return ",".join(str(path) for path in sorted((ROOT / ".jars" / "spark-kafka").glob("*.jar")))


class Broker:
    """One KRaft broker, combined with its controller, keeping its data in ``directory``.

    ``protocol`` is the clients' protocol, ``options`` are those of their listener, and ``users`` are names and
    passwords for SCRAM-SHA-512. Starting it raises ``FileNotFoundError`` without Java or Maven, and
    ``RuntimeError`` if it does not come up.
    """

    def __init__(
        self,
        directory: Path,
        protocol: str = "PLAINTEXT",
        options: Mapping[str, object] = MappingProxyType({}),
        users: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None
        port, broker_port, controller_port = _free_ports(3)
        self.address = f"127.0.0.1:{port}"
        self._config = directory / "server.properties"
        directory.mkdir(parents=True, exist_ok=True)
        config = _CONFIG.format(
            port=port,
            broker_port=broker_port,
            controller_port=controller_port,
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
        _need("java")
        _need("mvn")
        subprocess.run([ROOT / "scripts" / "jars" / "fetch", "kafka"], check=True)
        if not (self._directory / "logs" / "meta.properties").exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            # With an equals sign, since one id in 64 begins with a hyphen.
            arguments = ["format", f"--cluster-id={cluster}", "--config", str(self._config)]
            for name, password in self._users.items():
                arguments += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
            self._java("kafka.tools.StorageTool", *arguments).wait()
        self._process = self._java("kafka.Kafka", str(self._config))
        deadline = time.monotonic() + _START_DEADLINE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log = (self._directory / "broker.log").read_text(errors="replace")
                raise RuntimeError(f"The Kafka broker did not come up:\n{log[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Shut the broker down in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def _answers(self) -> bool:
        host, port = self.address.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
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
        java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        with (self._directory / "broker.log").open("ab") as log:
            return subprocess.Popen(
                [java, *options, "-cp", f"{_JARS}/*", *arguments], stdout=log, stderr=log, cwd=self._directory
            )


def _need(command: str) -> None:
    if shutil.which(command) is None:
        raise FileNotFoundError(f"Kafka needs {command!r} here, which is not on the PATH.")


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
