"""Kills between the durable steps of something, before each call that changes a directory or syncs a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

_STEPS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "utime")


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it has an effect."""


def killed_before(number: int, act: Callable[[], object]) -> bool:
    """Run something, and kill it before its n-th step, counted from 0; returns whether it got so far."""
    steps = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal steps
            # What is to clean up after an error does not run either.
            if steps >= number:
                raise Killed
            steps += 1
            return call(*arguments, **options)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in _STEPS:
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            act()
        except Killed:
            return True
    return False


def refuse_renames(monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], bool]) -> None:
    """Have no directory renamed whose path meets a condition, as an overlay refuses it for its lower layer."""
    rename = os.rename

    def refusing(source: Any, target: Any, **options: Any) -> None:
        if os.path.isdir(source) and refused(os.fspath(source)):
            _refuse(source)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", refusing)


def _refuse(source: object) -> NoReturn:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
