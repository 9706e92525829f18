"""Checks of this machine: Python, Java, open files, disks, files of tokens."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from forebay import __version__
from forebay.bearer_tokens import TokensFile
from forebay.console.findings import Finding, Severity
from forebay.doctor.check import Check, of_error
from forebay.errors import SettingError
from forebay.file_access import cause, denial
from forebay.topology import Topology

_OPTIONAL = ("pyspark", "pyarrow", "confluent-kafka", "aiokafka")
_OLDEST_JAVA = 17
_NEWEST_JAVA = {"4.0": 23, "4.1": 23}
"""By Spark minor, the last on which it starts: their Hadoop calls what Java 24 has removed."""
_NEWEST_JAVA_TESTED = 25
_FILES_PER_STORE = 10
_FILES_FOR_CONNECTIONS = 4_096
_LEAST_FREE = 0.1
_LEAST_FREE_BYTES = 1 << 30
_FULL_BYTES = 64 << 20
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_versions() -> Check:
    """Which Python and which packages there are."""
    installed = ", ".join(f"{name} {_version(name) or 'absent'}" for name in _OPTIONAL)
    return Check("versions", f"forebay {__version__}, Python {platform.python_version()}, {installed}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_java() -> Check:
    """Whether Spark, where it is installed, finds a Java that it runs on."""
    spark = _version("pyspark")
    if spark is None:
        return Check("java", "not needed: pyspark is not installed here")
    home = os.environ.get("JAVA_HOME")
    command = shutil.which(f"{home}/bin/java" if home else "java")
    found = None if command is None else _java_version(command)
    return java_verdict(command, found, spark)


def _java_version(command: str) -> int | None:
    done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    major = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return None if major is None else int(major[1])


def java_verdict(command: str | None, major: int | None, spark: str) -> Check:
    """The check of a Java command, None without one, and its major version, None if it tells none, for a Spark."""
    minor = ".".join(spark.split(".")[:2])
    newest = _NEWEST_JAVA.get(minor, _NEWEST_JAVA_TESTED)
    if major is not None and _OLDEST_JAVA <= major <= newest:
        return Check("java", f"Java {major} at {command}")
    what = "There is no Java" if command is None else f"{command} is Java {major or 'of an unknown version'}"
    detail = f"{what}; Spark {minor} runs on {_OLDEST_JAVA} to {newest}."
    remedy = "Install one, on Debian openjdk-17-jre-headless, or set JAVA_HOME to one that is installed."
    return Check("java", what, (Finding("java-unsuitable", "error", detail, remedy),))


def check_open_files(topology: Topology | None) -> Check:
    """Whether a worker may open as many files as its stores and connections may need."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return open_files_verdict(most, topology)


def open_files_verdict(most: int, topology: Topology | None) -> Check:
    """The check of the hard limit, for a worker that holds all of a topology at worst."""
    stores = 0 if topology is None else sum(spec.partitions for spec in topology.stores.values())
    needed = _FILES_FOR_CONNECTIONS + _FILES_PER_STORE * stores
    detail = f"{most:,} open files allowed, up to {needed:,} needed"
    if most == resource.RLIM_INFINITY or most >= needed:
        return Check("open files", detail)
    remedy = "Raise the hard limit: LimitNOFILE= of a systemd unit, --ulimit nofile of a container, or ulimit -Hn."
    return Check("open files", detail, (Finding("open-files", "warning", f"Only {detail}.", remedy),))


def check_disk(name: str, directory: Path) -> Check:
    """Whether a directory may be written, and its disk has room."""
    denied = denial(directory)
    if denied is not None:
        message = f"{directory} cannot be used: {denied}."
        return Check(name, str(directory), (Finding.of_message("directory-not-writable", "error", message, ""),))
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    usage = shutil.disk_usage(there)
    return disk_verdict(name, there, usage.free, usage.total)


def disk_verdict(name: str, directory: Path, free_bytes: int, total_bytes: int) -> Check:
    """The check of a directory's disk."""
    detail = f"{directory} has {free_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB free"
    if free_bytes >= max(_LEAST_FREE_BYTES, _LEAST_FREE * total_bytes):
        return Check(name, detail)
    severity: Severity = "error" if free_bytes < _FULL_BYTES else "warning"
    remedy = "Free some space, or use a larger disk: a full one stops what is written."
    return Check(name, detail, (Finding("disk-full", severity, f"{detail}.", remedy),))


def check_sent_token(path: Path) -> Check:
    """Whether a file of the token that is sent can be read, and by its user only."""
    try:
        path.open("rb").close()
        return Check("token files", str(path), tuple(_open_to_others(path)))
    except OSError as error:
        message = f"The token file {path} cannot be read: {cause(error, path)}."
        remedy = "Name one that exists with --token-file."
        return Check("token files", str(path), (Finding.of_message("token-file", "error", message, remedy),))


def check_accepted_tokens(path: Path) -> Check:
    """Whether a file of the tokens that a process accepts can be used, and who may read it."""
    try:
        TokensFile(path)
        return Check("accepted tokens", str(path), tuple(_open_to_others(path)))
    except SettingError as error:
        findings = [of_error("tokens-unusable", error, _remedy_of_tokens(path))]
    with contextlib.suppress(OSError):
        findings += _open_to_others(path)
    return Check("accepted tokens", str(path), tuple(findings))


def _remedy_of_tokens(path: Path) -> str:
    if not os.path.exists(path):
        return "Name one that exists with --auth-tokens-file."
    return "Give it lines of the form NAME TOKEN, with a token of: openssl rand -hex 32"


def _open_to_others(path: Path) -> Iterator[Finding]:
    """The finding of a secret that others may read or change; raises ``OSError``."""
    if path.stat().st_mode & _OF_OTHERS:
        detail = f"Others on this machine may read or change {path}."
        yield Finding("token-file", "warning", detail, f"Run: chmod 600 {path}")
