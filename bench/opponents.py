"""The opponents: other servers and proxies, each a single process on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.cluster import free_port, wait_until

_NGINX = """
daemon off;
user root;
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/nginx-error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    open_file_cache max=100;
    keepalive_requests 1000000000;
    client_body_temp_path {directory}/nginx-body;
    proxy_temp_path {directory}/nginx-proxy;
    fastcgi_temp_path {directory}/nginx-fastcgi;
    uwsgi_temp_path {directory}/nginx-uwsgi;
    scgi_temp_path {directory}/nginx-scgi;
    default_type application/json;
    server {{ listen {address}; root {directory}; }}
}}
"""
_HAPROXY = """
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    http-reuse always
frontend clients
    bind {address}
    default_backend workers
backend workers
    server worker {upstream}
"""


@contextlib.contextmanager
def nginx(directory: Path, body: bytes) -> Iterator[str]:
    """nginx with one worker process; ``/body`` is a file of these bytes."""
    address = f"127.0.0.1:{free_port()}"
    (directory / "body").write_bytes(body)
    config = directory / "nginx.conf"
    config.write_text(_NGINX.format(directory=directory, address=address))
    with _running(["nginx", "-p", str(directory), "-c", str(config), "-e", str(directory / "nginx.log")], address):
        yield address


@contextlib.contextmanager
def haproxy(directory: Path, upstream: str) -> Iterator[str]:
    """HAProxy with one thread; connections to the upstream are kept and shared."""
    address = f"127.0.0.1:{free_port()}"
    config = directory / "haproxy.cfg"
    config.write_text(_HAPROXY.format(address=address, upstream=upstream))
    with _running(["haproxy", "-db", "-f", str(config)], address):
        yield address


@contextlib.contextmanager
def redis(directory: Path) -> Iterator[str]:
    """Redis that keeps nothing on disk."""
    address = f"127.0.0.1:{free_port()}"
    port = address.rpartition(":")[2]
    command = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    with _running(command, address):
        yield address


@contextlib.contextmanager
def asgi(app: str, **environment: str) -> Iterator[str]:
    """An application of ``bench.apps`` in one uvicorn process with uvloop and httptools."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "uvicorn", f"bench.apps:{app}", "--factory", "--port", address[10:]]
    command += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    command += ["--no-server-header", "--no-date-header"]
    with _running(command, address, **environment):
        yield address


@contextlib.contextmanager
def _running(command: list[str], address: str, **environment: str) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    try:
        wait_until(lambda: process.poll() is not None or _accepts(address), f"{command[0]} on {address}")
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True
