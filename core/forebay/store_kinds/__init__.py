"""The kinds of stores. A kind is one module here, and one entry of ``STORE_KINDS``.

What needs a layer that may not be imported here, such as Spark's, is in a table of that layer: ``KIND_COLUMNS`` in
``forebay_spark.kind_columns``, ``COMPACTABLE`` in ``forebay_changelog.sqlite.compaction``, ``CONVERSIONS`` in
``forebay_tap.conversion`` and ``ITEM_TYPES`` in ``forebay_client.results``. A test holds that each has every
kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from forebay.store_kinds.key_value import KeyValueKind
from forebay.store_kinds.kind import StoreKind
from forebay.store_kinds.session import SessionKind
from forebay.store_kinds.versioned import VersionedKind
from forebay.store_kinds.window import WindowKind

STORE_KINDS: Mapping[str, StoreKind] = {
    kind.name: kind for kind in (KeyValueKind(), WindowKind(), SessionKind(), VersionedKind())
}
"""Every kind, by its name in the topology. The first one is the default."""

DEFAULT_KIND = next(iter(STORE_KINDS))
"""The kind of a store that names none."""

SINGLE_VALUE_KINDS = tuple(kind.name for kind in STORE_KINDS.values() if kind.has_single_values)
"""The kinds whose keys have one value at a time."""

__all__ = ["DEFAULT_KIND", "SINGLE_VALUE_KINDS", "STORE_KINDS", "StoreKind"]
