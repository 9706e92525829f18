"""A partition's page of a list, in the form in which workers send what is merged."""

from __future__ import annotations

from typing import Any

import httpx

from forebay.wire.scan_pages import FRAMES_MEDIA_TYPE, ScanPage
from forebay.wire.scans import SCAN_HEADER


def page_headers(page_bytes: int) -> dict[str, str]:
    """The headers that request a page which ends when it is this large."""
    return {"accept": FRAMES_MEDIA_TYPE, "forebay-page-bytes": str(page_bytes)}


def is_page(response: httpx.Response) -> bool:
    """Whether a response is such a page."""
    return bool(response.headers.get("content-type") == FRAMES_MEDIA_TYPE)


def page_document(response: httpx.Response) -> dict[str, Any] | None:
    """The page with what tells whose it is, None if it is damaged."""
    try:
        page = ScanPage.decode(response.content)
    except ValueError:
        return None
    return {"page": page, "partitions": [page.source], "scan": response.headers.get(SCAN_HEADER)}
