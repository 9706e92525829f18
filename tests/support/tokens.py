"""Tokens by their holders, as long as the tokens file wants them."""

from forebay.bearer_tokens import MIN_TOKEN_CHARACTERS


def token_of(holder: str) -> str:
    return holder.ljust(MIN_TOKEN_CHARACTERS, "-")


def header_of(holder: str) -> str:
    return f"Bearer {token_of(holder)}"
