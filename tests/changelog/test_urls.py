from pathlib import Path

import pytest

from forebay.errors import SettingError
from forebay_changelog import open_changelog
from forebay_changelog.sqlite.changelog import SqliteChangelog
from tests.support.installed import install_changelog


def test_a_sqlite_url_opens_the_directory_it_names(tmp_path: Path) -> None:
    changelog = open_changelog(f"sqlite://{tmp_path}/the%20log")
    assert isinstance(changelog, SqliteChangelog)
    assert changelog.directory == tmp_path / "the log"
    assert (tmp_path / "the log" / "topics.db").exists()


def test_a_changelog_is_found_again_by_its_own_url(tmp_path: Path) -> None:
    changelog = SqliteChangelog(tmp_path / "log")
    changelog.ensure_topic("t", 1)
    for url in (changelog.url, changelog.url.replace("sqlite:///", "sqlite:////")):
        assert open_changelog(url).identity("t") == changelog.identity("t")


@pytest.mark.parametrize("url", ["", "log", "/var/log", "kafkaa://b:1"])
def test_unknown_scheme_names_the_installed_ones(url: str) -> None:
    with pytest.raises(SettingError, match=r"kafka:// \(with the extra kafka\), sqlite://\.") as caught:
        open_changelog(url)
    assert repr(url) in str(caught.value)


def test_a_package_may_bring_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_changelog(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    changelog = open_changelog(f"notebook://{tmp_path}/log")
    assert type(changelog).__name__ == "Notebook"
    assert changelog.directory == tmp_path / "log"
    with pytest.raises(SettingError, match="notebook://, sqlite://"):
        open_changelog("nonsense")


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://log", "sqlite://host/log"])
def test_any_other_url_is_refused_with_the_form_it_should_have(url: str) -> None:
    with pytest.raises(SettingError, match="sqlite:///DIR") as caught:
        open_changelog(url)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize("url", ["sqlite:///log?x", "sqlite:///log#x"])
def test_unescaped_character_in_a_directory_is_refused(url: str) -> None:
    """The error names the escape to use."""
    with pytest.raises(SettingError, match="'%3F'"):
        open_changelog(url)


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(SettingError, match="is not a URL"):
        open_changelog("sqlite://[::1/log")


@pytest.mark.parametrize("server", ["[::1:9092", "::1:9092", "[::1]x:9092", "a]:9092"])
def test_a_broker_whose_address_lacks_a_bracket_is_refused(server: str) -> None:
    with pytest.raises(SettingError, match="is not HOST:PORT"):
        open_changelog(f"kafka://a:9092,{server}")
