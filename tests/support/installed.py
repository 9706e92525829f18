"""Third-party packages, as installed by pip: an authenticator, a legacy store, and a changelog."""

from pathlib import Path

_AUTHENTICATOR = '''
from forebay.errors import Forbidden, Unauthenticated


class ByStore:
    """A token is the name of the store that it opens; what is no store's is open to all."""

    def authenticate(self, method, path, authorization):
        if not path.startswith("/v1/stores/"):
            return
        if not authorization.startswith(b"Bearer "):
            raise Unauthenticated("Which store?")
        if authorization == b"Bearer broken":
            raise RuntimeError("out of order")
        if path.split("/")[3] != authorization[7:].decode():
            raise Forbidden("Another store.")
'''


_STORE = '''
import json
import os


class FileStore:
    """A sorted map in a file. It does not manage its offsets."""

    persistent = True
    manages_offsets = False

    def __init__(self, name, path):
        self.name = name
        self._file = path / "content.json"
        try:
            found = json.loads(self._file.read_text())
        except FileNotFoundError:
            found = {}
        self._content = {bytes.fromhex(key): bytes.fromhex(value) for key, value in found.items()}
        self._changes = {}

    def get(self, key):
        return self._content.get(key)

    def get_many(self, keys):
        return [self._content.get(key) for key in keys]

    def scan(self, start, end, *, reverse=False):
        content = self._content
        keys = sorted(key for key in content if start <= key < end)
        return iter([(key, content[key]) for key in (reversed(keys) if reverse else keys)])

    def put(self, key, value):
        self._changes[key] = value

    def delete(self, key):
        self._changes[key] = None

    def commit(self, changelog_offsets):
        merged = {**self._content, **self._changes}
        self._content = {key: value for key, value in merged.items() if value is not None}
        self._changes = {}

    def committed_offset(self, topic_partition):
        return None

    def flush(self):
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({key.hex(): value.hex() for key, value in sorted(self._content.items())}))
        os.replace(draft, self._file)

    def close(self):
        pass
'''


_CHANGELOG = '''
from forebay_changelog.sqlite.changelog import SqliteChangelog
from forebay_worker.group.sqlite.membership import SqliteMembership


class Notebook(SqliteChangelog):
    """A SQLite changelog under a scheme of its own."""

    def __init__(self, url):
        super().__init__(url.partition("://")[2])
        self.url = url


def open_notebook(url, *, create):
    return Notebook(url)


class NotebookMembership(SqliteMembership):
    @classmethod
    def open(cls, url, *arguments):
        return super().open(url.replace("notebook:", "sqlite:"), *arguments)
'''


def install_authenticator(directory: Path) -> None:
    """Put the package where a directory of ``sys.path`` or ``PYTHONPATH`` has it: ``by-store`` is its name."""
    _install(directory, "bystore", _AUTHENTICATOR, "[forebay.authenticators]\nby-store = bystore:ByStore\n")


def install_file_store(directory: Path) -> None:
    """The same for a store that does not manage its offsets: ``file`` is its supplier's name."""
    _install(directory, "filestore", _STORE, "[forebay.stores]\nfile = filestore:FileStore\n")


def install_changelog(directory: Path) -> None:
    """The same for a changelog and its group: their URLs are of the form ``notebook://DIR``."""
    entry_points = "[forebay.changelogs]\nnotebook = notebook:open_notebook\n"
    entry_points += "[forebay.memberships]\nnotebook = notebook:NotebookMembership\n"
    _install(directory, "notebook", _CHANGELOG, entry_points)


def _install(directory: Path, name: str, module: str, entry_points: str) -> None:
    (directory / f"{name}.py").write_text(module)
    information = directory / f"{name}-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (information / "entry_points.txt").write_text(entry_points)
