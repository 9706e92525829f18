"""The snippets of ``docs/client.md``, run as they stand, but for the servers' addresses."""

import re
from pathlib import Path
from typing import Any

from forebay_client.options import ReadOptions
from tests.support.cluster import free_port, running_cluster

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS + HOUR_MS
TOPOLOGY = f"""
application_id = "shop"
[[subtopology]]
name = "orders"
partitions = 2
[[subtopology.store]]
name = "orders_by_customer"
[[subtopology.store]]
name = "orders_by_hour"
kind = "window"
window_size_ms = {HOUR_MS}
retention_ms = {1_000_000 * HOUR_MS}
"""


def test_the_snippets_do_what_is_said_of_them(tmp_path, capsys):
    with running_cluster(tmp_path, topology_text=TOPOLOGY) as cluster:
        cluster.put("orders_by_customer", {b"ann": b'{"count":2}', b"bob": b'{"count":1}'})
        windows = {START_MS: b'{"count":1}', START_MS + HOUR_MS: b'{"count":2}'}
        cluster.put(
            "orders_by_hour", {b"ann" + start.to_bytes(8, "big"): value for start, value in windows.items()}
        )
        cluster.start_worker()
        router = cluster.start_router()
        cluster.wait_settled(router, replicas=1)
        of_page: dict[str, Any] = {}
        printed = []
        for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.S):
            # The first of two is down.
            first = f"127.0.0.1:{free_port()}" if "router-2" in snippet else router
            exec(snippet.replace("router-1:8080", first).replace("router-2:8080", router), of_page)
            printed.append(capsys.readouterr().out)
    one, unreached, several, _, change, many, held, both = printed
    assert re.fullmatch(r"\{'count': 2\} \d+ active \S+\n", one)
    assert f"```\n{unreached}```" in PAGE
    assert several.startswith("ann {'count': 2}\nbob {'count': 1}\nzoe none\nWindow(key='ann', ")
    assert f"end_ms={START_MS + 2 * HOUR_MS}, value={{'count': 2}}, timestamp_ms=" in several
    assert of_page["names"] == ["ann"]
    assert of_page["token"]
    assert change.startswith("Answer(store='orders_by_customer', key='ann', value={'count': 2}")
    assert re.fullmatch(r"\{'ann': \(\{'count': 2\}, \d\)\} 0\n", many)
    where, *lags = held.splitlines()
    assert re.fullmatch(r"\d 127\.0\.0\.1:\d+ \(\)", where)
    assert [re.sub(r" 127.0.0.1:\d+", "", line) for line in sorted(lags)] == ["0 active 0 None", "1 active 0 None"]
    assert both == "[{'count': 2}, {'count': 1}]\n"


def test_the_table_has_every_option():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == list(ReadOptions.__annotations__)
