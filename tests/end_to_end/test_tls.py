"""Both tiers over TLS: reads, certificates that are replaced, and those that are not accepted."""

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from forebay.client import Client
from forebay.errors import SettingError
from forebay_web.tls import listener_tls, trust
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

KEYS = 50


class Authority:
    """An authority, and where its certificates are."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._authority = trustme.CA()
        self.directory = directory
        self.file = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def issue(self, *names: str) -> trustme.LeafCert:
        return self._authority.issue_cert(*names)

    def options(self, *names: str) -> tuple[str, ...]:
        """Those of a process with a certificate for these names."""
        return tuple(map(str, flags(*put(self.directory, self.issue(*names)))))


def put(directory: Path, certificate: trustme.LeafCert) -> tuple[Path, Path]:
    """The files of a certificate and its key, replaced if they exist."""
    chain, key = directory / "tls.crt", directory / "tls.key"
    for path, text in (
        (key, certificate.private_key_pem.bytes()),
        (chain, b"".join(blob.bytes() for blob in certificate.cert_chain_pems)),
    ):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(text)
        fresh.rename(path)
    return chain, key


def flags(chain: Path, key: Path) -> tuple[str, ...]:
    return "--tls-certificate-file", str(chain), "--tls-key-file", str(key)


def start_workers(cluster: Cluster, count: int, options: tuple[str, ...]) -> list[str]:
    """Workers that are known by the name localhost."""
    addresses = []
    for _ in range(count):
        port = free_port()
        advertise = ("--advertise", f"localhost:{port}")
        addresses.append(cluster.start_worker(f"127.0.0.1:{port}", *options, *advertise, ready=False))
    return addresses


def start_router(cluster: Cluster, workers: list[str], *options: str) -> str:
    seeds = ",".join(worker.replace("127.0.0.1", "localhost") for worker in workers)
    return cluster.launch_router(*options, "--seeds", seeds)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.file)


@contextlib.contextmanager
def encrypted(authority: Authority, directory: Path, workers: int) -> Iterator[tuple[Cluster, list[str], str]]:
    """Workers and a router whose certificates have no name but localhost, and the router's URL."""
    own = authority.options("localhost")
    with running_cluster(directory) as cluster:
        cluster.put("counts", {b"k%d" % i: b"%d" % i for i in range(KEYS)})
        addresses = start_workers(cluster, workers, own)
        router = start_router(cluster, addresses, *own, "--worker-ca-file", str(authority.file))
        yield cluster, addresses, f"https://{router.replace('127.0.0.1', 'localhost')}"


def status(url: str, authority: Authority) -> subprocess.CompletedProcess[str]:
    """What ``forebay status`` does for someone who trusts the authority."""
    environment = {**os.environ, "SSL_CERT_FILE": str(authority.file)}
    command = [sys.executable, "-m", "forebay", "status", "--url", url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def replicas(http: httpx.Client, url: str) -> list[str]:
    try:
        rows = http.get(f"{url}/v1/lags").json().get("lags", [])
    except httpx.TransportError:
        return []
    return [row["role"] for row in rows if row["store"] == "counts" and row["record_lag"] == 0]


def test_every_read_works_over_tls_and_survives_a_worker(authority, trusting, tmp_path):
    with (
        encrypted(authority, tmp_path, workers=2) as (cluster, workers, url),
        httpx.Client(verify=trusting) as http,
    ):
        wait_until(lambda: sorted(replicas(http, url)) == ["active"] * 4 + ["standby"] * 4, "both replicas")
        with Client(url, verify=trusting) as client:
            assert client.get("counts", "k7").value == 7
            assert [answer.value for answer in client.get_many("counts", ["k1", "k2"])] == [1, 2]
            assert sorted(entry.value for entry in client.entries("counts")) == list(range(KEYS))
            with client.changes("counts", "k3") as changes:
                assert next(iter(changes)).value == 3
            # Answered on the fast path, and by the route.
            path = f"{url}/v1/stores/counts/keys/k9"
            hot, ordinary = http.get(path), http.get(path, headers={"te": "trailers"})
            assert hot.json()["value"] == ordinary.json()["value"] == 9
            assert hot.headers.keys() == ordinary.headers.keys()
            reported = status(url, authority)
            assert reported.returncode == 0, reported.stderr
            assert "give an https:// URL" in status(url.replace("https", "http"), authority).stderr
            cluster.kill(workers[0])
            assert [client.get("counts", f"k{i}").value for i in range(KEYS)] == list(range(KEYS))
        assert "Traceback" not in cluster.logs()


def test_a_stream_leaves_a_worker_that_hangs(authority, trusting, tmp_path):
    with encrypted(authority, tmp_path, workers=2) as (cluster, _, url), httpx.Client(verify=trusting) as http:
        wait_until(lambda: sorted(replicas(http, url)) == ["active"] * 4 + ["standby"] * 4, "both replicas")
        with Client(url, verify=trusting) as client, client.changes("counts", "k3") as changes:
            hung = next(iter(changes)).host.replace("localhost", "127.0.0.1")
            cluster.kill(hung, signal.SIGSTOP)
            try:
                # A regular close would wait for half a minute for a worker that says nothing.
                deadline_s = time.monotonic() + 20
                cluster.put("counts", {b"k3": b"33"})
                assert any(change.value == 33 for change in changes)
                assert time.monotonic() < deadline_s
            finally:
                cluster.kill(hung, signal.SIGCONT)


def test_connections_that_rest_do_not_hold_up_the_end(authority, trusting, tmp_path):
    with (
        encrypted(authority, tmp_path, workers=1) as (cluster, (worker,), url),
        contextlib.ExitStack() as resting,
    ):
        router = url.rpartition("/")[2].replace("localhost", "127.0.0.1")
        processes = {worker: cluster.workers[worker], router: cluster.router_process(router)}
        for address in processes:
            port = int(address.rpartition(":")[2])
            wait_until(lambda port=port: serves(port, trusting), address)
            plain = resting.enter_context(socket.create_connection(("localhost", port), 30))
            client = resting.enter_context(trusting.wrap_socket(plain, server_hostname="localhost"))
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        # A peer that is idle does not confirm the end, for which a regular close waits for half a minute.
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        assert [process.wait(6) for process in processes.values()] == [0, 0]


def serves(port: int, trusting: ssl.SSLContext) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"https://localhost:{port}/v1/status", verify=trusting).status_code == 200
    return False


def test_a_certificate_is_replaced_under_a_running_process(authority, trusting, tmp_path):
    directory = tmp_path / "own"
    directory.mkdir()
    first, second = (authority.issue("localhost") for _ in range(2))
    chain, key = put(directory, first)
    with running_cluster(tmp_path) as cluster:
        (worker,) = start_workers(cluster, 1, flags(chain, key))
        port = int(worker.rpartition(":")[2])

        def shown() -> str:
            with (
                socket.create_connection(("localhost", port), 10) as plain,
                trusting.wrap_socket(plain, server_hostname="localhost") as client,
            ):
                return ssl.DER_cert_to_PEM_cert(client.getpeercert(binary_form=True))

        wait_until(lambda: serves(port, trusting), "the worker")
        assert shown() == pem(first)
        # A key of another certificate, as it is for a moment while both are replaced.
        key.write_bytes(second.private_key_pem.bytes())
        wait_until(lambda: shown() == pem(first) and "KEY_VALUES_MISMATCH" in cluster.logs(), "the mismatch")
        put(directory, second)
        wait_until(lambda: shown() == pem(second), "the new certificate")
        put(directory, first)
        wait_until(lambda: shown() == pem(first), "the first one again")


def pem(certificate: trustme.LeafCert) -> str:
    return certificate.cert_chain_pems[0].bytes().decode()


def why_unusable(router: str) -> str:
    try:
        documents = httpx.get(f"http://{router}/v1/status").json()["rejected_addresses"]
    except httpx.TransportError:
        return ""
    return " ".join(document["reason"] for document in documents)


def test_a_router_says_why_it_does_not_trust_a_worker(authority, tmp_path):
    other = Authority(tmp_path / "other")
    with running_cluster(tmp_path) as cluster:
        (worker,) = start_workers(cluster, 1, authority.options("localhost"))
        (plain,) = start_workers(cluster, 1, ())
        for host, options, why in (
            (
                "localhost",
                ("--worker-ca-file", str(other.file)),
                "certificate is not accepted: unable to get local",
            ),
            (
                "127.0.0.1",
                ("--worker-ca-file", str(authority.file)),
                "certificate is not accepted: IP address mismatch",
            ),
            ("localhost", (), "if it speaks HTTPS, this router needs --worker-ca-file"),
        ):
            seed = worker.replace("127.0.0.1", host)
            router = cluster.launch_router(*options, "--seeds", seed)
            wait_until(lambda router=router, why=why: why in why_unusable(router), why)
        router = cluster.launch_router("--worker-ca-file", str(authority.file), "--seeds", plain)
        wait_until(lambda: "it may speak plain HTTP" in why_unusable(router), "the plain worker's unmasking")
        assert json.loads(httpx.get(f"http://{router}/readyz").content)["status"] == 503


def test_files_that_cannot_be_used_are_named(authority, tmp_path):
    chain, key = put(tmp_path, authority.issue("localhost"))
    locked = tmp_path / "locked.key"
    loaded = load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    empty = tmp_path / "empty.pem"
    empty.write_text("\n")
    with pytest.raises(SettingError, match=r"locked\.key: .*the key is encrypted"):
        listener_tls(chain, locked)
    with pytest.raises(SettingError, match=r"none\.key cannot be used: No such file"):
        listener_tls(chain, tmp_path / "none.key")
    other = tmp_path / "other.key"
    other.write_bytes(authority.issue("localhost").private_key_pem.bytes())
    for certificate, given, words in (
        (chain, other, r"the key in .*other\.key: KEY_VALUES_MISMATCH\. Give the two that were issued together"),
        (key, key, "contains no certificate in PEM form"),
        (chain, chain, "contains no private key in PEM form"),
    ):
        with pytest.raises(SettingError, match=words) as caught:
            listener_tls(certificate, given)
        assert "_ssl.c" not in str(caught.value)
    for unusable in (empty, key, tmp_path / "none.pem"):
        with pytest.raises(SettingError, match=unusable.name):
            trust(unusable)


def test_silent_connections_are_counted_before_their_handshake(authority, trusting, tmp_path):
    """They take descriptors, and one address leaves room for others."""
    with running_cluster(tmp_path) as cluster, contextlib.ExitStack() as silent:
        (worker,) = start_workers(cluster, 1, (*authority.options("localhost"), "--max-connections", "16"))
        port = int(worker.rpartition(":")[2])
        with httpx.Client(verify=trusting) as http:
            wait_until(lambda: serves(port, trusting), "the worker")

            def connections() -> float:
                metrics = http.get(f"https://localhost:{port}/metrics").text
                return float(re.search(r'^forebay_held\{what="connections"\} (\S+)$', metrics, re.M)[1])

            before = connections()
            for _ in range(8):
                silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            wait_until(lambda: connections() == before + 8, "silent connections being counted")
            refused = [silent.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)]
            ended = []
            for connection in refused:
                connection.settimeout(1)
                with contextlib.suppress(TimeoutError, ConnectionResetError):
                    ended.append(connection.recv(1))
            assert b"" in ended
            silent.close()
            wait_until(lambda: connections() == before, "their end")
