"""The routes by which workers copy each other's stores. They are no client's: they take the workers' own token."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import Response

from forebay.errors import BadParameter, Forbidden, NotHostedHere, Problem
from forebay.wire.answers import json_answer, problem_answer
from forebay_web.application import respond
from forebay_web.request_guard import SNAPSHOTS_PATH
from forebay_web.streamed_response import StreamedResponse
from forebay_worker.snapshots.giving import PIECE_HEAD, Pace, sound_store
from forebay_worker.tasks.replica import Replica

if TYPE_CHECKING:
    from forebay_worker.worker import Worker

_THREADS = 4
_MAX_OFFSET_DIGITS = 15


def add_snapshot_routes(app: FastAPI, worker: Worker, *, has_clients: bool) -> None:
    """Add ``/v1/snapshots``: POST takes one, GET reads a file of it, DELETE ends it.

    Without a token of the workers, nobody gets a copy where there are clients with credentials (``has_clients``).
    Where there are none, everybody may read all anyway.
    """
    snapshots, token = worker.snapshots, worker.snapshot_token
    pool = ThreadPoolExecutor(_THREADS, "forebay-snapshot")

    def require(request: Request) -> None:
        if token is None and not has_clients:
            return
        given = request.headers.get("authorization", "").encode("latin-1")
        if token is None or not hmac.compare_digest(given, token()):
            raise Forbidden(
                "Copies of stores are for other workers: start all of them with the same --snapshot-token-file."
            )

    async def take(request: Request) -> Response:
        replica = _replica_of(worker, request)
        store, position = (
            sound_store(replica, worker.admission.doubt(replica.view)),
            replica.view.progress.position,
        )
        name, snapshot = await asyncio.get_running_loop().run_in_executor(pool, snapshots.take, store)
        return respond(json_answer({"snapshot": name, "position": position, "files": dict(snapshot.files)}))

    async def read(request: Request) -> Response:
        start = request.query_params.get("from", "0")
        if not start.isdecimal() or len(start) > _MAX_OFFSET_DIGITS:
            raise BadParameter(f"from={start!r} is no offset in a file.", parameter="from")
        where = request.path_params["snapshot"], request.path_params["file"]
        size = snapshots.size_of_pieces(*where, int(start))
        get = partial(snapshots.piece, *where)
        first = await asyncio.get_running_loop().run_in_executor(pool, get, int(start))
        pieces = _pieces(first, int(start), get, pool, snapshots.pace)
        # Else each piece would be copied into a chunk.
        headers = {"content-length": str(size)}
        return StreamedResponse(pieces, media_type="application/octet-stream", headers=headers)

    async def end(request: Request) -> Response:
        drop = partial(snapshots.drop, request.path_params["snapshot"])
        await asyncio.get_running_loop().run_in_executor(pool, drop)
        return Response(status_code=204)

    def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                require(request)
                return await endpoint(request)
            except Problem as problem:
                return respond(problem_answer(problem))

        return answer

    one = f"{SNAPSHOTS_PATH}/{{snapshot}}"
    app.router.add_route(SNAPSHOTS_PATH, guarded(take), methods=["POST"], include_in_schema=False)
    app.router.add_route(f"{one}/{{file}}", guarded(read), methods=["GET"], include_in_schema=False)
    app.router.add_route(one, guarded(end), methods=["DELETE"], include_in_schema=False)


async def _pieces(
    piece: bytes, offset: int, get: Callable[[int], bytes], pool: ThreadPoolExecutor, pace: Pace
) -> AsyncIterator[bytes]:
    """A file from an offset on, whose first piece was read: it was found to be there."""
    while piece:
        if delay_s := pace.delay_s(len(piece)):
            await asyncio.sleep(delay_s)
        yield piece
        offset += len(piece) - PIECE_HEAD.size
        piece = await asyncio.get_running_loop().run_in_executor(pool, get, offset)


def _replica_of(worker: Worker, request: Request) -> Replica:
    """The replica that a request wants a copy of; raises ``UnknownStore`` and ``NotHostedHere``."""
    name, number = request.query_params.get("store", ""), request.query_params.get("partition", "")
    worker.spec(name)
    replica = worker.tasks.replicas.get((name, int(number))) if number.isdecimal() and len(number) < 9 else None
    if replica is None:
        raise NotHostedHere(f"Partition {number!r} of {name!r} is not held here.", store=name)
    return replica
