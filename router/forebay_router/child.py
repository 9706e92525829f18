"""One of a router's several processes."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.settings import RouterSettings
from forebay_router.command import run
from forebay_web.processes.child import run_as_child
from forebay_web.processes.peer_processes import ProcessSlot
from forebay_web.unix_listeners import inherited_listener


def _run(settings: RouterSettings, place: ProcessSlot, descriptors: Sequence[int]) -> None:
    run(settings, place, list(map(inherited_listener, descriptors)))


if __name__ == "__main__":
    run_as_child(_run)
