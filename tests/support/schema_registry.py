"""A schema registry on this machine: the part of the REST interface of Confluent's that its serializers use.

It stands in for the real one, which no package has.
"""

from __future__ import annotations

import base64
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.local_server import LocalServer


class SchemaRegistry(LocalServer):
    """Schemas by their ids, and by the versions of their subjects.

    Once it has ``credentials``, as ``user:password``, requests without them are refused.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.schemas: list[dict[str, Any]] = []
        self.versions: dict[str, list[int]] = {}
        self.credentials: str | None = None
        self.deleted_subjects: set[str] = set()
        """Those that are shown only to who requests deleted ones too."""

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """The id of a schema, the same for the same content."""
        content = {"schemaType": "AVRO", "references": []} | schema
        if content not in self.schemas:
            self.schemas.append(content)
        schema_id = 100 + self.schemas.index(content)
        versions = self.versions.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def answer(self, method: str, path: str, query: str, body: bytes) -> tuple[int, Any]:
        """A status and a document."""
        match re.fullmatch(r"/(schemas/ids|subjects)/([^/]+)(?:/versions(?:/(\d+))?)?", path):
            case None:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
            case found if found[1] == "schemas/ids":
                number = int(found[2]) - 100
                if number in range(len(self.schemas)):
                    return 200, self.schemas[number]
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case found if method == "POST":
                given, subject = json.loads(body), unquote(found[2])
                schema_id = self.register(subject, {name: given[name] for name in given if given[name]})
                named = {
                    "subject": subject,
                    "version": 1 + self.versions[subject].index(schema_id),
                    "id": schema_id,
                }
                return 200, {**named, **self.schemas[schema_id - 100]}
            case found:
                subject, version = unquote(found[2]), int(found[3])
                if subject in self.deleted_subjects and "deleted=true" not in query.lower():
                    return 404, {"error_code": 40401, "message": "Subject not found"}
                schema_id = self.versions[subject][version - 1]
                named = {"subject": subject, "version": version, "id": schema_id}
                return 200, {**named, **self.schemas[schema_id - 100]}


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistry

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, body: bytes) -> None:
        _, _, path, query, _ = urlsplit(self.path)
        self.server.requests[path] += 1
        credentials = self.server.credentials
        expected = "" if credentials is None else f"Basic {base64.b64encode(credentials.encode()).decode()}"
        if self.server.is_away:
            status, document = 503, {"error_code": 503, "message": "The registry is away"}
        elif credentials is not None and self.headers.get("authorization") != expected:
            status, document = 401, {"error_code": 401, "message": "Unauthorized"}
        else:
            status, document = self.server.answer(self.command, path, query, body)
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/vnd.schemaregistry.v1+json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""
