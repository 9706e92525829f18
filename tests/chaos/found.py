"""The faults that judged runs and simulated schedules have found, and where each was mended."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """One fault: what it was, the runs that showed it, and the commit that mended it."""

    fault: str
    shown_by: str
    commit: str


FOUND = (
    Found(
        "What had left its bounds was read again from a standby at their edge, so a list was refused that the "
        "active could have answered.",
        "`scripts/chaos --minutes 17 --seed 79 --log kafka`",
        "0d11ffc",
    ),
    Found(
        "A batch that was applied while a page of a store's changes was read was left out of that page and of the "
        "next, so followers never saw its changes.",
        "`scripts/chaos --minutes 19 --seed 78 --log kafka --brokers 3`",
        "b3ecae8",
    ),
    Found(
        "A store's stream whose connection broke between two events that share an id resumed with too old an id. "
        "It never got again what a reset had made it forget.",
        "`scripts/chaos`, once it followed whole stores",
        "bda1687",
    ),
    Found(
        "A store that a sweep found damaged was held open by the sweep, so its rebuild began two seconds late.",
        "`scripts/chaos --minutes 20 --seed 74 --log kafka`",
        "fe4d98d",
    ),
    Found(
        "A read that was cancelled while its client connected left an error in the program's log.",
        "`scripts/chaos --minutes 20 --seed 73 --log sqlite --worker-processes 2`",
        "ddb9449",
    ),
    Found(
        "A worker that was expelled and joined again was active by its old assignment. A leader that missed the "
        "end of its own round gave out another assignment under the same number.",
        "`scripts/simulate --log kafka`, seeds 39, 76, 114, 126, 172 and 823",
        "c489580",
    ),
    Found(
        "A database that was made anew extended leases that the old one had ended.",
        "`scripts/simulate --log sqlite`, seeds 24, 104 and 129",
        "5664d71",
    ),
    Found(
        "A worker built a standby because an interrupted round had named it active.",
        "`scripts/simulate --log kafka`, seeds 41, 113 and 189",
        "425d643",
    ),
)
