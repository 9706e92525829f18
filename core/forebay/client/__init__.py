"""A client of routers and workers: typed answers, each with its lag.

``Client`` blocks, ``AsyncClient`` awaits; both drive the same plans of requests. A server's refusal is raised as
the matching class of ``forebay.errors``, with the problem's members and its ``lag``, if stated.
"""

from forebay.client.asynchronous import AsyncChanges, AsyncClient, AsyncItems, AsyncSession
from forebay.client.blocking import Changes, Client, Items, Session
from forebay.client.options import ALL_KEYS, ReadOptions, Time
from forebay.client.results import Answer, Change, Entry, Page, ReplicaLag, SessionWindow, Version, Window
from forebay.client.store_changes import Absent, Reset, StoreChange, StoreLag, Values
from forebay.unproven import UnprovenRange
from forebay.wire.answers import ReplicaInfo

__all__ = [
    "ALL_KEYS",
    "Absent",
    "Answer",
    "AsyncChanges",
    "AsyncClient",
    "AsyncItems",
    "AsyncSession",
    "Change",
    "Changes",
    "Client",
    "Entry",
    "Items",
    "Page",
    "ReadOptions",
    "ReplicaInfo",
    "ReplicaLag",
    "Reset",
    "Session",
    "SessionWindow",
    "StoreChange",
    "StoreLag",
    "Time",
    "UnprovenRange",
    "Values",
    "Version",
    "Window",
]
