"""Generates the OpenAPI documents of both tiers from their applications."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from forebay.setting_sources import load_settings
from forebay.settings import RouterSettings, WorkerSettings
from forebay_router.app import make_app as make_router_app
from forebay_router.metrics import RouterMetrics
from forebay_router.router import Router
from forebay_web.limits import Limits
from forebay_worker.app import make_app as make_worker_app
from forebay_worker.metrics import WorkerMetrics
from forebay_worker.worker import Worker

HERE = Path(__file__).parent
TOPOLOGY = HERE.parent / "examples" / "flights" / "topology.toml"


def worker_document() -> dict[str, Any]:
    """The worker's OpenAPI document."""
    with tempfile.TemporaryDirectory() as directory:
        flags = {
            "topology": str(TOPOLOGY),
            "changelog": f"sqlite://{directory}/changelog",
            "state_dir": f"{directory}/state",
        }
        settings = WorkerSettings(**load_settings("worker", flags, environment={}))
        worker = Worker(settings, settings.listen, Limits(settings))
        return make_worker_app(worker, WorkerMetrics(worker)).openapi()


def router_document() -> dict[str, Any]:
    """The router's OpenAPI document."""
    settings = RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:8081"}, environment={}))
    router = Router(settings)
    return make_router_app(router, RouterMetrics(router)).openapi()


def text_of(document: dict[str, Any]) -> str:
    """A document as it is committed."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write both documents."""
    (HERE / "worker.json").write_text(text_of(worker_document()))
    (HERE / "router.json").write_text(text_of(router_document()))


if __name__ == "__main__":
    main()
