from pathlib import Path

import pytest

from forebay.authentication import make_authenticator
from forebay.errors import Forbidden, SettingError
from forebay.tokens import TokensFile
from tests.installed import install_authenticator


def test_nobody_is_asked_unless_a_setting_says_so():
    assert make_authenticator(None, None) is None


def test_a_tokens_file_makes_one(tmp_path: Path):
    path = tmp_path / "tokens"
    path.write_text("ann secret")
    assert isinstance(make_authenticator(None, path), TokensFile)


def test_two_of_them_are_refused(tmp_path: Path):
    with pytest.raises(SettingError, match=r"--authenticator and --auth-tokens-file"):
        make_authenticator("by-store", tmp_path / "tokens")


def test_an_installed_one_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install_authenticator(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = make_authenticator("by-store", None)
    assert found is not None
    found.authenticate("GET", "/v1/stores/counts/keys/a", b"Bearer counts")
    with pytest.raises(Forbidden):
        found.authenticate("GET", "/v1/stores/numbers/keys/a", b"Bearer counts")


def test_one_that_is_not_installed_is_told_with_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SettingError, match=r"'nobody'.*forebay\.authenticators.*none"):
        make_authenticator("nobody", None)
    install_authenticator(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="by-store"):
        make_authenticator("nobody", None)
