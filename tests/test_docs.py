"""Documentation that can be checked against the code is."""

import asyncio
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from bench.headlines import HEADLINES
from bench.run import newest_report
from docs.generate import GENERATED, problems_page, settings_page

from forebay.authentication import AUTHENTICATOR_ENTRY_POINTS
from forebay.cli import commands
from forebay.client import Client
from forebay.codecs.keys import KEY_CODECS
from forebay.codecs.values import VALUE_CODECS
from forebay.errors import Forbidden, Problem, Unauthenticated
from forebay.setting_sources import load_settings
from forebay.settings import SETTINGS, RouterSettings
from forebay.store_spec import PARTITIONER_ENTRY_POINTS, StoreSpec
from forebay.streams_metadata import StreamsMetadataState
from forebay.topology import SubTopology
from forebay.topology_file import KINDS, STORE_ENTRY_POINTS, parse_topology
from tests.support.parts import PARTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TOPOLOGY_PAGE = (DOCS / "topology.md").read_text()
A_SUBTOPOLOGY = 'application_id = "shop"\n[[subtopology]]\nname = "orders"\npartitions = 4\n'


def rows(section: str) -> dict[str, list[str]]:
    """The cells of a section's tables, by what stands in the first."""
    lines = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", section, re.M)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in lines}


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next one that is not below it."""
    level = heading.partition(" ")[0]
    _, _, rest = page.partition(f"\n{heading}\n")
    assert rest, heading
    return re.split(rf"^#{{1,{len(level)}}} ", rest, maxsplit=1, flags=re.M)[0]


def examples(page: str) -> list[str]:
    """The topologies among a page's examples, those of one store made whole."""
    blocks = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    whole = [A_SUBTOPOLOGY + block if block.startswith("[[subtopology.store]]") else block for block in blocks]
    return [text for text in whole if "application_id" in text]


@pytest.mark.parametrize(("name", "make"), GENERATED.items())
def test_generated_files_are_current(name, make):
    assert (DOCS / name).read_text() == make(), "run python -m docs.generate"


def test_every_setting_and_problem_has_its_line():
    for setting in SETTINGS:
        assert f"`{setting.flag}`" in settings_page()
    for problem in Problem.__subclasses__():
        assert f"`{problem.name}`" in problems_page()


def test_every_field_of_the_topology_has_its_row():
    fields = section(TOPOLOGY_PAGE, "## Fields")
    of_classes = {field.name for cls in (StoreSpec, SubTopology) for field in dataclasses.fields(cls)}
    # What would be a keyword is a name with a prefix.
    of_files = {name.removeprefix("is_") for name in of_classes}
    # The ordinal is the place in the file.
    assert rows(fields).keys() == of_files - {"ordinal", "stores"} | {"application_id", "subtopology", "store"}


def test_the_defaults_of_a_store_are_those_documented():
    spec = parse_topology(tomllib.loads(f'{A_SUBTOPOLOGY}[[subtopology.store]]\nname = "only"')).stores["only"]
    of_stores = section(TOPOLOGY_PAGE, "## Fields").partition("[[subtopology.store]]")[2]
    for name, (_, default, *_) in rows(of_stores).items():
        if default.startswith("`") and "<" not in default:
            assert str(getattr(spec, name)).lower() == default.strip("`"), name
        elif default == "unlimited":
            assert getattr(spec, name) is None, name


def test_every_codec_and_entry_point_group_is_documented():
    assert rows(section(TOPOLOGY_PAGE, "## Key codecs")).keys() == KEY_CODECS.keys()
    assert rows(section(TOPOLOGY_PAGE, "## Value codecs")).keys() == VALUE_CODECS.keys()
    own = section(TOPOLOGY_PAGE, "## Classes of your own")
    for group in (PARTITIONER_ENTRY_POINTS, STORE_ENTRY_POINTS, AUTHENTICATOR_ENTRY_POINTS):
        assert f"| `{group}` |" in own
        assert f'[project.entry-points."{group}"]' in own


def test_authenticator_example_is_limited_to_its_store():
    [example] = re.findall(r"```python\n(.*?)```", section(TOPOLOGY_PAGE, "### Authenticator classes"), re.DOTALL)
    defined: dict[str, Any] = {}
    exec(example, defined)
    authenticate = defined["ByStore"]().authenticate
    # The client looks at the store first.
    for path in ("/v1/stores/orders", "/v1/stores/orders/keys/a", "/v1/stores/orders/batch-get"):
        authenticate("GET", path, b"Bearer 5f1c09")
    for path in ("/v1/stores/orders2", "/v1/stores/stock/keys/a", "/v1/status"):
        with pytest.raises(Forbidden):
            authenticate("GET", path, b"Bearer 5f1c09")
    with pytest.raises(Unauthenticated):
        authenticate("GET", "/v1/stores/orders", b"")


def test_the_examples_of_topologies_are_topologies():
    parsed = [parse_topology(tomllib.loads(text)) for text in examples(TOPOLOGY_PAGE)]
    specs = [spec for topology in parsed for spec in topology.stores.values()]
    assert {spec.kind for spec in specs} == set(KINDS)
    assert any(spec.external for spec in specs)


def leaves(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield " ".join([*path, name]), command


def test_every_command_has_its_row_and_an_example_that_it_takes(monkeypatch):
    page = (DOCS / "commands.md").read_text()
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S) for line in block.splitlines()]
    for line in lines:
        if line.startswith("export "):
            monkeypatch.setenv(*line.removeprefix("export ").split("=", 1))
    for words, command in leaves(commands):
        assert f"\n| `forebay {words}` |" in page, words
        own = [line for line in lines if line.startswith(f"forebay {words}")]
        assert own, words
        for example in own:
            arguments = shlex.split(example.removeprefix(f"forebay {words}"))
            # What the one dangerous command asks is not asked of a test.
            given = command.make_context(words, arguments + ["--yes"] * (words == "changelog reset")).params
            if words in ("worker", "router"):
                given.pop("config")
                assert load_settings(words, given)


def test_every_metric_is_documented(cluster):
    from forebay_router.app import process_group
    from forebay_router.metrics import RouterMetrics
    from forebay_router.router import Router
    from forebay_web.processes.process_slot import SINGLE_PROCESS

    cluster.put("counts", {b"a": b"1"})
    address = cluster.start_worker()
    import httpx

    worker = re.findall(r"^# TYPE (\S+)", httpx.get(f"http://{address}/metrics").text, re.M)
    settings = RouterSettings(**load_settings("router", {"seeds": "127.0.0.1:1"}, environment={}))
    running = Router(settings)
    metrics = asyncio.run(process_group(running, RouterMetrics(running), SINGLE_PROCESS).metrics())
    router = [metric.name for metric in metrics]
    page = (DOCS / "metrics.md").read_text()
    for name in {*worker, *router}:
        assert f"`{name.removesuffix('_total')}" in page, name


def test_every_route_and_every_parameter_of_reads_is_documented():
    pages = (DOCS / "rest.md").read_text() + (DOCS / "console.md").read_text()
    router = json.loads((ROOT / "openapi" / "router.json").read_text())
    for path, methods in router["paths"].items():
        assert re.search(re.escape(path) + r"[`?\s]", pages), path
        for parameter in methods.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query":
                assert re.search(rf"\b{parameter['name']}\b", pages), parameter["name"]


def test_the_modules_that_pages_name_exist():
    named = {
        (page.name, path)
        for page in DOCS.rglob("*.md")
        for path in re.findall(rf"`((?:{'|'.join(PARTS)})/[\w/.]+)`", page.read_text())
    }
    assert len(named) > 100
    assert not [(page, path) for page, path in named if not (ROOT / path).exists()]


def test_a_record_names_a_module_once():
    """Where two became one, its line says what both did."""
    for record in (DOCS / "decisions").iterdir():
        code = record.read_text().partition("## Code")[2]
        named = re.findall(r"\]\((\.\./\.\./[^)]+)\)", code)
        assert len(named) == len(set(named)), record.name


def test_every_decision_is_a_record_in_the_table():
    table = re.findall(
        r"^\| (\d+) \| \[(.+)\]\(decisions/(.+)\) \| .+ \|$", (DOCS / "decisions.md").read_text(), re.M
    )
    records = sorted((DOCS / "decisions").iterdir())
    assert [name for _, _, name in table] == [record.name for record in records]
    for number, (listed, title, name) in enumerate(table, 1):
        text = (DOCS / "decisions" / name).read_text()
        assert (listed, name[:5]) == (str(number), f"{number:04}-")
        assert text.startswith(f"# {number}. {title}\n"), name
        parts = [part for part in re.findall(r"^## (.+)$", text, re.M) if part != "Figures"]
        assert parts == ["Context", "Decision", "Consequences", "Code"], name
        assert sum(map(bool, text.splitlines())) <= 45, f"{name}: too long for one decision"


def test_what_the_page_for_kafka_streams_names_is_there():
    page = (DOCS / "kafka-streams.md").read_text()
    assert set(re.findall(r"`(--[a-z-]+)`", page)) <= {setting.flag for setting in SETTINGS} | {"--watch"}
    methods = set(re.findall(r"`\.(\w+)\(", page))
    assert len(methods) > 5
    assert methods <= set(dir(StreamsMetadataState))
    assert set(re.findall(r"`client\.(\w+)\(", page)) <= set(dir(Client))
    paths = set(json.loads((ROOT / "openapi/router.json").read_text())["paths"])
    assert set(re.findall(r"(/v1/[\w/{}]+)", page)) <= paths


def test_every_term_of_the_glossary_says_where_it_lives():
    lines = re.findall(r"^\| (.+) \|$", (DOCS / "glossary.md").read_text(), re.M)
    terms = [line.split(" | ") for line in lines if not line.startswith("term | ")]
    assert len(terms) > 60
    for term, meaning, kafka, where in terms:
        assert meaning, term
        assert kafka, term
        assert (DOCS.parent / where.strip("`")).is_file(), term


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("comparison.md", "## What was measured"),
        ("failover.md", "## How long it takes"),
        ("routers.md", "### What a row costs"),
        ("state-tap.md", "## What it costs"),
    ],
)
def test_figures_are_those_of_the_report(page, heading):
    figures = re.findall(
        r"[\d,.]+ (?:requests/s|records/s|keys/s|s|ms|µs|MB)\b(?= \|)", section((DOCS / page).read_text(), heading)
    )
    assert figures
    report = (DOCS / "figures.md").read_text()
    for figure in figures:
        number, unit = figure.split(" ", 1)
        assert re.search(rf"\| {re.escape(number)} (\([^)]*\) )?{re.escape(unit)} ", report), f"{page}: {figure}"


def test_each_question_about_speed_has_its_figure():
    report = newest_report()
    rows = {(row.what, row.against) for row in report.rows}
    assert [one.question for one in HEADLINES if (one.what, one.against) not in rows] == []
    assert (DOCS / "performance.md").read_text() == report.page()
    assert (DOCS / "figures.md").read_text() == report.figures_page()


def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {page.stem for page in pages} > {page.stem for page in DOCS.rglob("*.md")}
    for page in pages:
        text = page.read_text()
        assert "Content-Security-Policy" in text
        assert not re.findall(r"<(?!a\b)\w+ [^>]*(?:src|href)=.?(?:https?:)?//", text), page.name
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text()), sheet.name


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(found), f"{page.name}: {target}#{anchor}"
