"""What a process and the children that it forks must not share: connections, and locks that a thread may hold."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class OfOneProcess(Protocol):
    """What is made anew in a forked child."""

    def on_fork(self) -> None:
        """Called in the child, before anything else runs there; no other thread exists yet."""


_live: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()


def renew_on_fork(one: OfOneProcess) -> None:
    """Have ``on_fork`` called in every child that is forked from now on."""
    _live.add(one)


_inherited: list[object] = []


def leave_to_parent(inherited: object) -> None:
    """Keep an object as it is. Why: freeing connections would take locks that a thread of the parent may hold."""
    _inherited.append(inherited)


def _on_fork() -> None:
    for one in list(_live):
        one.on_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_on_fork)
