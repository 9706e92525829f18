"""One of a router's several processes."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.processes.child import run_as_child
from forebay.processes.peer_processes import ProcessSlot
from forebay.rest.unix_listeners import inherited_listener
from forebay.settings import RouterSettings
from forebay_router.command import run


def _run(settings: RouterSettings, place: ProcessSlot, descriptors: Sequence[int]) -> None:
    run(settings, place, list(map(inherited_listener, descriptors)))


if __name__ == "__main__":
    run_as_child(_run)
