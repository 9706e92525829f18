"""The table of planted faults fits the code, and its runner tells a fault that is noticed from one that is not."""

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, NotApplicable, check, mutated
from tests.mutants.table import MUTANTS

TEST = "core/test_lag.py::test_no_bound_is_met_by_anything"
ROOT = Path(__file__).parent.parent
CODE = """
LIMIT = 3


class Lag:
    def met(self):
        return self.figure <= LIMIT

    def unmet(self):
        return self.figure <= LIMIT
"""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant):
    check(mutant, ROOT)


def test_there_are_many_mutants_each_with_its_name():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60


def planted(symbol: str, old: str, new: str) -> Mutant:
    return Mutant(
        "m", "", f"forebay.lag:{symbol}", old, new, ("core/test_lag.py::test_no_bound_is_met_by_anything",)
    )


def test_a_fault_is_planted_in_its_symbol_alone():
    assert mutated(planted("Lag.unmet", "<=", "<"), CODE) == "<".join(CODE.rsplit("<=", 1))
    assert mutated(planted("LIMIT", "3", "4"), CODE) == CODE.replace("3", "4")


@pytest.mark.parametrize(
    ("symbol", "old", "new"),
    [("Lag.within", "<=", "<"), ("Lag.met", ">", "<"), ("Lag", "<=", "<"), ("Lag.met", "<=", "< <")],
    ids=["no such symbol", "no such fragment", "twice", "no Python"],
)
def test_a_fault_that_does_not_apply_is_refused(symbol, old, new):
    with pytest.raises(NotApplicable):
        mutated(planted(symbol, old, new), CODE)


def test_a_mutant_whose_test_is_gone_is_refused():
    good = planted("Tolerance.met_by", "<= bound", "< bound")
    check(good, ROOT)
    with pytest.raises(NotApplicable, match=r"no test core/test_lag\.py::test_gone"):
        check(good._replace(tests=("core/test_lag.py::test_gone",)), ROOT)
    with pytest.raises(NotApplicable, match="names no test"):
        check(good._replace(tests=()), ROOT)
