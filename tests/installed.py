"""A third-party package, as installed by pip, with an authenticator of its own."""

from pathlib import Path

_MODULE = '''
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


def install_authenticator(directory: Path) -> None:
    """Put the package where a directory of ``sys.path`` or ``PYTHONPATH`` has it: ``by-store`` is its name."""
    (directory / "bystore.py").write_text(_MODULE)
    information = directory / "bystore-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: bystore\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[forebay.authenticators]\nby-store = bystore:ByStore\n")
