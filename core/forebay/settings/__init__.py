"""Settings: one table of them, and their values for each tier.

A setting's value comes from its flag, else ``FOREBAY_<NAME>``, else the ``--config`` file (TOML), else the
default, in that order.
"""

from forebay.settings.reading import load_settings, load_some, parse_setting
from forebay.settings.table import (
    ENVIRONMENT_PREFIX,
    SETTINGS,
    RouterSettings,
    Setting,
    Tier,
    WorkerSettings,
    settings_for,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SETTINGS",
    "RouterSettings",
    "Setting",
    "Tier",
    "WorkerSettings",
    "load_settings",
    "load_some",
    "parse_setting",
    "settings_for",
]
