"""An issuer of OpenID Connect's tokens on this machine: real keys, real signatures."""

from __future__ import annotations

import base64
import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.local_server import LocalServer


class Issuer(LocalServer):
    """Signs tokens and publishes its keys; ``clients`` are the ids and secrets of those who may ask for tokens.

    ``life_s`` is how long tokens are valid, ``audience`` for whom they are.
    """

    def __init__(self, clients: dict[str, str], audience: str = "kafka", life_s: float = 3600) -> None:
        super().__init__(_Handler)
        self.clients = clients
        self.audience = audience
        self.life_s = life_s
        self.keys = [RSAKey.generate_key(2048, {"kid": "1"})]

    def rotate(self) -> None:
        """Sign with a new key from now on, and publish no other."""
        self.keys = [RSAKey.generate_key(2048, {"kid": str(int(self.keys[0].kid or 0) + 1)})]

    def token(self, subject: str, **claims: Any) -> str:
        """A signed token; a claim of None is left out."""
        now_s = time.time()
        standard = {"iss": self.url, "aud": self.audience, "sub": subject, "iat": int(now_s)}
        all_claims = {**standard, "exp": int(now_s + self.life_s), **claims}
        given = {name: value for name, value in all_claims.items() if value is not None}
        return jwt.encode({"alg": "RS256", "kid": self.keys[0].kid}, given, self.keys[0])


class _Handler(BaseHTTPRequestHandler):
    server: Issuer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests[self.path] += 1
        if self.server.is_away:
            self._send(503, {"error": "away"})
        elif self.path == "/jwks":
            self._send(200, {"keys": [key.as_dict(private=False) for key in self.server.keys]})
        elif self.path == "/.well-known/openid-configuration":
            self._send(200, {"issuer": self.server.url, "jwks_uri": f"{self.server.url}/jwks"})
        else:
            self._send(404, {"error": "not_found"})

    def do_POST(self) -> None:
        self.server.requests[self.path] += 1
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        scheme, _, credentials = self.headers.get("authorization", "").partition(" ")
        client, _, secret = base64.b64decode(credentials).decode().partition(":")
        if scheme != "Basic" or self.server.clients.get(client, "") != secret or not secret:
            self._send(401, {"error": "invalid_client"})
        elif form.get("grant_type") != ["client_credentials"]:
            self._send(400, {"error": "unsupported_grant_type"})
        else:
            token = self.server.token(client, scope=form.get("scope", [None])[0])
            self._send(200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.server.life_s)})

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: tests fail by what they see."""
