from pathlib import Path

import pytest

from forebay.authentication import Authenticator, make_authenticator
from forebay.bearer_tokens import TokensFile
from forebay.errors import Forbidden, SettingError
from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings
from tests.support.installed import install_authenticator
from tests.support.tokens import token_of


def made(name: str | None, tokens_file: Path | None, **others: str) -> Authenticator | None:
    flags = {"authenticator": name, "auth_tokens_file": tokens_file and str(tokens_file), **others}
    given = {"seeds": "127.0.0.1:1", **{flag: value for flag, value in flags.items() if value is not None}}
    return make_authenticator(RouterSettings(**load_settings("router", given, {})))


def test_nobody_authenticates_unless_a_setting_demands_it():
    assert made(None, None) is None


def test_a_tokens_file_makes_one(tmp_path: Path):
    path = tmp_path / "tokens"
    path.write_text(f"ann {token_of('ann')}")
    assert isinstance(made(None, path), TokensFile)


def test_two_of_them_are_refused(tmp_path: Path):
    with pytest.raises(SettingError, match=r"--authenticator and --auth-tokens-file"):
        made("by-store", tmp_path / "tokens")


def test_an_installed_one_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install_authenticator(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = made("by-store", None)
    assert found is not None
    found.authenticate("GET", "/v1/stores/counts/keys/a", b"Bearer counts")
    with pytest.raises(Forbidden):
        found.authenticate("GET", "/v1/stores/numbers/keys/a", b"Bearer counts")


def test_one_that_is_not_installed_is_named_with_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SettingError, match=r"'nobody'.*forebay\.authenticators.*none"):
        made("nobody", None)
    install_authenticator(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="by-store"):
        made("nobody", None)


class Installed:
    """An entry point of an authenticator that is given here."""

    name = "given"

    def __init__(self, authenticate: object) -> None:
        self._made = type("Given", (), {"authenticate": authenticate})

    def load(self) -> type:
        return self._made


@pytest.mark.parametrize("outcome", [False, True, "yes", 0])
def test_anything_returned_but_none_refuses(monkeypatch: pytest.MonkeyPatch, caplog, outcome):
    given = Installed(lambda self, method, path, authorization: outcome)
    monkeypatch.setattr("forebay.authentication.entry_points", lambda **_: [given])
    found = made("given", None)
    assert found is not None
    for _ in range(2):
        with pytest.raises(Forbidden):
            found.authenticate("GET", "/v1/stores", b"Bearer anything")
    assert caplog.text.count("is refused") == 1


def test_an_asynchronous_one_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch):
    """Its coroutine, never awaited, would have admitted everyone."""

    async def authenticate(self: object, method: str, path: str, authorization: bytes) -> None:
        raise Forbidden("never reached")

    monkeypatch.setattr("forebay.authentication.entry_points", lambda **_: [Installed(authenticate)])
    with pytest.raises(SettingError, match="asynchronous"):
        made("given", None)


def test_a_coroutine_that_is_returned_refuses(monkeypatch: pytest.MonkeyPatch):
    async def later() -> None:
        """Never run."""

    given = Installed(lambda self, method, path, authorization: later())
    monkeypatch.setattr("forebay.authentication.entry_points", lambda **_: [given])
    found = made("given", None)
    assert found is not None
    with pytest.raises(Forbidden):
        found.authenticate("GET", "/v1/stores", b"")
