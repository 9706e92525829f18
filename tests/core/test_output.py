"""The bar of long work."""

import contextlib
import os
import pty
import sys

import pytest

from forebay.output import progress


def shown(monkeypatch: pytest.MonkeyPatch, total: int | None) -> str:
    """What a terminal gets of seven steps of some work."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with os.fdopen(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            with progress("reading counts", total) as advance:
                advance(3)
                advance(4)
        # At its end, a terminal has an error in place of nothing.
        received = b""
        with contextlib.suppress(OSError):
            while part := screen.read(4096):
                received += part
        return received.decode()


def test_a_terminal_shows_what_is_done_and_of_how_much(monkeypatch):
    assert "reading counts" in shown(monkeypatch, 9)
    assert "7/9" in shown(monkeypatch, 9)
    assert "7/?" in shown(monkeypatch, None)


def test_a_pipe_gets_nothing(monkeypatch, capsys):
    with progress("reading counts", 9) as advance:
        advance(3)
    assert capsys.readouterr().err == ""
