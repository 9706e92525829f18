"""Single-key reads by who may read: a signed token of an issuer, and grants, against a token of a file."""

from __future__ import annotations

from bench import credentials
from bench.comparison import Effort
from bench.deployment import STORE, served
from bench.figures import Row, Target, interleaved
from bench.single_key import CONNECTIONS
from bench.wrk import Requests, load

from tests.support.issuer import Issuer

_LEAST = 0.97
_GRANTS = f"""
[[grant]]
principal = "bench"
stores = ["{STORE}"]
verbs = ["read", "list", "metadata"]

[[grant]]
principal = "other"
stores = ["*"]
verbs = ["read"]
key_prefix = "a"
"""


def identities(effort: Effort) -> list[Row]:
    directories = [effort.directory / name for name in ("file", "signed", "granted")]
    for directory in directories:
        directory.mkdir()
    grants = directories[2] / "grants.toml"
    grants.write_text(_GRANTS)
    with (
        Issuer({}, audience="forebay") as issuer,
        served(directories[0]) as (_, of_file, _, keys),
        served(directories[1], options=("--auth-jwt-issuer", issuer.url, "--auth-jwt-audience", "forebay")) as (
            _,
            of_issuer,
            _,
            _,
        ),
        served(directories[2], options=("--grants-file", str(grants))) as (_, granted, _, _),
    ):
        requests = Requests(f"/v1/stores/{STORE}/keys/{keys[0]}")
        signed = f"Bearer {issuer.token('bench')}"

        def rate(address: str, authorization: str = credentials.AUTHORIZATION) -> float:
            return load(
                address, requests, connections=CONNECTIONS, seconds=effort.seconds, authorization=authorization
            ).requests_per_second

        rows = []
        for what, address, authorization in (
            ("worker, one key, a signed token of an issuer", of_issuer, signed),
            ("worker, one key, a token with grants", granted, credentials.AUTHORIZATION),
        ):
            ours, theirs = interleaved(
                effort.rounds,
                lambda address=address, authorization=authorization: rate(address, authorization),
                lambda: rate(of_file),
            )
            against = "the same with a token of a file alone"
            rows.append(Row(what, "requests/s", ours, against, theirs, Target(_LEAST)))
        return rows
