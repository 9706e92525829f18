"""An S3 server of moto, which remembers the requests that it was sent by others than the test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

BUCKET = "lake"
KEY_ID, SECRET = "AKIAREADER", "secret"
_TEST_KEY_ID = "AKIATEST"


class Request(NamedTuple):
    """``operation`` is ``LIST`` or the method, ``key`` its object or prefix, ``key_id`` who has signed it."""

    operation: str
    key: str
    key_id: str


class ObjectStore:
    """A bucket ``lake`` on a server of this process."""

    def __init__(self) -> None:
        # Their import takes a while.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._requests: list[Request] = []
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._client.create_bucket(Bucket=BUCKET)

    @property
    def environment(self) -> dict[str, str]:
        """What names the server to a process, with credentials."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.port}",
        }

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=key)

    def requests(self, prefix: str) -> list[Request]:
        """Those below a prefix since they were last taken."""
        taken = [request for request in self._requests if request.key.startswith(prefix)]
        self._requests = [request for request in self._requests if not request.key.startswith(prefix)]
        return taken

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @cached_property
    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=_TEST_KEY_ID,
            aws_secret_access_key=SECRET,
        )

    def _answer(self, environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = _request(environment)
        if request.key_id != _TEST_KEY_ID:
            self._requests.append(request)
        answer: Iterable[bytes] = self._application(environment, start_response)
        return answer


class UploadedQuery:
    """A checkpoint in a bucket, of which no batch has ended so far."""

    def __init__(self, objects: ObjectStore, written: Path, prefix: str) -> None:
        self._objects, self._written, self.prefix = objects, written, prefix
        for path in written.rglob("*"):
            if path.is_file() and path.parent.name != "commits":
                self._upload(path)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    def end(self, batch: int) -> None:
        self._upload(self._written / "commits" / str(batch))

    def lose(self, path: str) -> None:
        self._objects.delete(f"{self.prefix}/{path}")

    def _upload(self, path: Path) -> None:
        self._objects.put(f"{self.prefix}/{path.relative_to(self._written)}", path.read_bytes())


def _request(environment: WSGIEnvironment) -> Request:
    method = environment["REQUEST_METHOD"]
    key = environment["PATH_INFO"].removeprefix(f"/{BUCKET}").removeprefix("/")
    key_id = environment.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0]
    if method == "GET" and not key:
        return Request("LIST", parse_qs(environment["QUERY_STRING"]).get("prefix", [""])[0], key_id)
    return Request(method, key, key_id)


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.close()
