"""A client of routers and workers: typed answers, each with its lag.

``Client`` blocks, ``AsyncClient`` awaits; both drive the same plans of requests. A server's refusal is raised as
the matching class of ``forebay.errors``, with the problem's members and its ``lag``, if stated.
"""

from forebay.unproven import UnprovenRange
from forebay.wire.answers import ReplicaInfo
from forebay_client.asynchronous import AsyncChanges, AsyncClient, AsyncItems, AsyncSession
from forebay_client.blocking import Changes, Client, Items, Session
from forebay_client.options import ALL_KEYS, ReadOptions, Time
from forebay_client.results import Answer, Change, Entry, Page, ReplicaLag, SessionWindow, Version, Window
from forebay_client.store_changes import Absent, Reset, StoreChange, StoreLag, Values

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
