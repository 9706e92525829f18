"""A client of routers and workers: typed answers, each with its lag.

``Client`` blocks, ``AsyncClient`` awaits; both drive the same plans of requests. Whatever a server refuses is
raised as the class of ``forebay.errors`` that names it, with the problem's members and, where the problem
states one, its ``lag``.
"""

from forebay.client.asynchronous import AsyncChanges, AsyncClient, AsyncItems, AsyncSession
from forebay.client.blocking import Changes, Client, Items, Session
from forebay.client.options import ALL_KEYS, ReadOptions, Time
from forebay.client.results import Answer, Change, Entry, Page, SessionWindow, Version, Window
from forebay.rest.answers import Provenance

__all__ = [
    "ALL_KEYS",
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
    "Provenance",
    "ReadOptions",
    "Session",
    "SessionWindow",
    "Time",
    "Version",
    "Window",
]
