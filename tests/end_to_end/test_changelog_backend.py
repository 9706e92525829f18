"""A changelog that another package brings is served like those that forebay has."""

import httpx
import pytest

from tests.support.commands import forebay
from tests.support.installed import install_changelog


def test_a_worker_serves_an_installed_changelog(cluster, tmp_path, monkeypatch: pytest.MonkeyPatch):
    packages = tmp_path / "packages"
    packages.mkdir()
    install_changelog(packages)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    cluster.put("counts", {b"a": b"1"})
    url = f"notebook://{cluster.changelog.directory}"
    worker = cluster.start_worker(None, "--changelog", url)
    assert httpx.get(f"http://{worker}/v1/stores/counts/keys/a").json()["value"] == 1
    assert (cluster.changelog.directory / "group.db").exists()
    options = ("--topology", cluster.topology_path, "--changelog", url)
    assert "counts" in forebay("changelog", "ls", *options).stdout
