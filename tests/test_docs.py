"""Documentation that can be held to the code is."""

import asyncio
import re
from pathlib import Path

import pytest
from docs.generate import problems_page, settings_page

from forebay.errors import Problem
from forebay.settings import SETTINGS, RouterSettings, load_settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize(("page", "make"), [("settings.md", settings_page), ("problems.md", problems_page)])
def test_generated_pages_are_current(page, make):
    assert (DOCS / page).read_text() == make(), "run python -m docs.generate"


def test_every_setting_and_problem_has_its_line():
    for setting in SETTINGS:
        assert f"`{setting.flag}`" in settings_page()
    for problem in Problem.__subclasses__():
        assert f"`{problem.name}`" in problems_page()


def test_every_metric_is_documented(cluster):
    from forebay_router.metrics import RouterMetrics
    from forebay_router.router import Router
    from forebay_router.siblings import ALONE
    from forebay_router.whole_router import WholeRouter

    cluster.put("counts", {b"a": b"1"})
    address = cluster.start_worker()
    import httpx

    worker = re.findall(r"^# TYPE (\S+)", httpx.get(f"http://{address}/metrics").text, re.M)
    settings = RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, environment={}))
    running = Router(settings)
    metrics = asyncio.run(WholeRouter(running, RouterMetrics(running), ALONE).metrics())
    router = [metric.name for metric in metrics.collect()]
    page = (DOCS / "metrics.md").read_text()
    for name in {*worker, *router}:
        assert f"`{name.removesuffix('_total')}" in page, name


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
