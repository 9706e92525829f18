"""The table of planted faults fits the code, and faults are planted where they are meant."""

import ast
import re

import pytest

from tests.mutants.generated import generated
from tests.mutants.mutant import ROOT, Mutant, NotApplicable, mutated, plant
from tests.mutants.table import MUTANTS, PROMISES

CODE = """
LIMIT = 3


class Lag:
    def met(self):
        return self.figure <= LIMIT

    def unmet(self):
        return self.figure <= LIMIT
"""
GOOD = Mutant(
    "m",
    "",
    "forebay.lag:Tolerance.met_by",
    "<= bound",
    "< bound",
    "core/test_lag.py::test_no_bound_is_met_by_anything",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant):
    plant(mutant)


def test_every_promise_has_mutants_each_with_its_name():
    _, promised, _ = re.split(
        r"^## What is (?:not )?promised$", (ROOT / "docs/concepts.md").read_text(), flags=re.M
    )
    assert set(re.findall(r"^\| \*\*(.+?)\*\*", promised, re.M)) <= PROMISES.keys()
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def planted(symbol: str, old: str, new: str) -> str:
    return mutated(GOOD._replace(symbol=f"forebay.lag:{symbol}", old=old, new=new), CODE)


def test_a_fault_is_planted_in_its_symbol_alone():
    assert planted("Lag.unmet", "<=", "<") == "<".join(CODE.rsplit("<=", 1))
    assert planted("LIMIT", "3", "4") == CODE.replace("3", "4")


@pytest.mark.parametrize(
    ("symbol", "old", "new"),
    [("Lag.within", "<=", "<"), ("Lag.met", ">", "<"), ("Lag", "<=", "<"), ("Lag.met", "<=", "< <")],
    ids=["no such symbol", "no such fragment", "twice", "no Python"],
)
def test_a_fault_that_does_not_apply_is_refused(symbol, old, new):
    with pytest.raises(NotApplicable):
        planted(symbol, old, new)


def test_a_mutant_whose_test_is_gone_is_refused():
    plant(GOOD)
    with pytest.raises(NotApplicable, match=r"no test core/test_lag\.py::test_gone"):
        plant(GOOD._replace(test="core/test_lag.py::test_gone"))


def test_generated_faults_differ_in_one_place_and_follow_from_the_seed():
    faults = generated("forebay.retention", 100, 0)
    original = ast.unparse(ast.parse((ROOT / "core/forebay/retention.py").read_text())).splitlines()
    for fault in faults:
        pairs = zip(fault.text.splitlines(), original, strict=True)
        assert sum(line != before for line, before in pairs) == 1
    assert len({fault.text for fault in faults}) == len(faults) > 10
    assert generated("forebay.retention", 5, 7) == generated("forebay.retention", 5, 7)
    assert generated("forebay.retention", 5, 7) != generated("forebay.retention", 5, 8)


def test_no_faults_are_generated_for_a_module_without_tests():
    with pytest.raises(NotApplicable, match="its tests are not at tests/core/test_quotas"):
        generated("forebay.quotas", 1, 0)
