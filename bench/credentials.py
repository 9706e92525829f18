"""The token that measured processes require, and that every load generator sends, to opponents as well."""

from __future__ import annotations

from pathlib import Path

_TOKEN = "measured-processes"
AUTHORIZATION = f"Bearer {_TOKEN}"


def worker_options(directory: Path) -> tuple[str, ...]:
    """Makes a worker require the token."""
    tokens = directory / "tokens"
    tokens.write_text(f"bench {_TOKEN}\n")
    return ("--auth-tokens-file", str(tokens))


def copying_options(directory: Path) -> tuple[str, ...]:
    """Lets workers that require the token copy each other's stores."""
    own = directory / "copying-token"
    own.write_text(f"copies-of-{_TOKEN}")
    return ("--snapshot-token-file", str(own))


def router_options(directory: Path) -> tuple[str, ...]:
    """Makes a router require the token, and send it to workers."""
    return (*worker_options(directory), *sidecar_options(directory))


def sidecar_options(directory: Path) -> tuple[str, ...]:
    """Makes a router on a Unix socket send the token to workers, and require none itself."""
    own = directory / "token"
    own.write_text(_TOKEN)
    return ("--worker-token-file", str(own))
