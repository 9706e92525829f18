"""Generates the pages whose tables come from the code, settings and problems, and the pages' drawings."""

from __future__ import annotations

import inspect
from pathlib import Path

from docs.drawings.failover import failover_svg
from docs.drawings.flow import flow_svg
from docs.drawings.lag import lag_svg
from docs.drawings.parts import parts_svg

from forebay.errors import Problem
from forebay.settings import SETTINGS, Setting

HERE = Path(__file__).parent


def settings_page() -> str:
    """``docs/settings.md``."""
    lines = [
        "# Settings",
        "",
        "A setting's value is its flag, else its environment variable (an empty one counts as absent), else its",
        "entry in the `--config` file (TOML, same names with `_`), else the default. In the file, and among",
        "variables that begin with `FOREBAY_`, names that mean nothing are refused. A flag with a default of",
        "`True` or `False` means `true` if it is given alone.",
        "Generated from `core/forebay/settings.py` by `python -m docs.generate`.",
        "",
        "| flag | environment | default | tiers | meaning |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{setting.flag}` | `{setting.environment}` | {_default(setting)} | "
        f"{', '.join(sorted(setting.tiers, reverse=True))} | {setting.help} |"
        for setting in SETTINGS
    ]
    return "\n".join(lines) + "\n"


def problems_page() -> str:
    """``docs/problems.md``."""
    lines = [
        "# Problems",
        "",
        "Every 4xx and 5xx answer is RFC 9457 `application/problem+json`. Its `type` is `urn:forebay:problem:`",
        "and one of these names, which the header `Forebay-Problem` repeats. If trying again may help,",
        "`Retry-After` and the member `retry_after_s` give the time to wait, in seconds.",
        "Generated from `core/forebay/errors.py` by `python -m docs.generate`.",
        "",
        "| status | name | meaning |",
        "|---|---|---|",
    ]
    problems: list[type[Problem]] = sorted(Problem.__subclasses__(), key=lambda item: (item.status, item.name))
    lines += [f"| {item.status} | `{item.name}` | {_meaning(item)} |" for item in problems]
    return "\n".join(lines) + "\n"


def _default(setting: Setting) -> str:
    if setting.required:
        return "*required*"
    return f"`{setting.default_text}`" if setting.default_text else ""


def _meaning(item: type[Problem]) -> str:
    """The first paragraph of its docstring, as one line of Markdown."""
    paragraph, _, _ = inspect.cleandoc(item.__doc__ or "").partition("\n\n")
    return paragraph.replace("\n", " ").replace("``", "`")


GENERATED = {
    "settings.md": settings_page,
    "problems.md": problems_page,
    "failover.svg": failover_svg,
    "flow.svg": flow_svg,
    "lag.svg": lag_svg,
    "parts.svg": parts_svg,
}
"""What makes each file, by its name."""


def main() -> None:
    """Write the files."""
    for name, make in GENERATED.items():
        (HERE / name).write_text(make())


if __name__ == "__main__":
    main()
