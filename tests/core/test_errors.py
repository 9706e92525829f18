import inspect
import json
import re
from http import HTTPStatus

import pytest

from forebay import errors
from forebay.errors import ChangelogError, ConfigurationError, ForebayError, Problem

CLASSES = [
    item
    for _, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, Exception) and item.__module__ == errors.__name__
]
PROBLEMS = [item for item in CLASSES if issubclass(item, Problem) and item is not Problem]
TREE = errors.__doc__ or ""


@pytest.mark.parametrize("item", CLASSES, ids=lambda item: item.__name__)
def test_every_error_is_in_the_tree_and_says_what_it_means(item: type[Exception]) -> None:
    assert issubclass(item, ForebayError)
    assert re.search(rf"\b{item.__name__}\b", TREE)
    assert item.__doc__


def test_the_tree_is_drawn_a_line_each() -> None:
    for item in set(CLASSES) - set(PROBLEMS) - {ForebayError}:
        assert re.search(rf"^[│ ]*[├└]── {item.__name__}\b(?!.*──)", TREE, re.MULTILINE), item


def test_the_tree_names_no_error_that_is_not_there() -> None:
    own = "\n".join(line for line in TREE.splitlines() if " tier) " not in line)
    named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w*\b|\bOverloaded\b", own))
    assert named <= {item.__name__ for item in CLASSES}


@pytest.mark.parametrize("item", PROBLEMS, ids=lambda item: item.__name__)
def test_the_tree_lists_each_problem_under_its_status(item: type[Problem]) -> None:
    line = next(line for line in TREE.splitlines() if re.search(rf"\b{item.__name__}\b", line))
    assert f" {item.status}  " in line
    HTTPStatus(item.status)


def test_no_two_problems_share_a_name() -> None:
    names = [item.name for item in PROBLEMS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("item", PROBLEMS, ids=lambda item: item.__name__)
def test_every_problem_is_valid_problem_json(item: type[Problem]) -> None:
    problem = item("Zürich is gone.", retry_after_s=2, store="delays", lag={"record_lag": None})
    document = json.loads(problem.body())
    assert list(document)[:4] == ["type", "title", "status", "detail"]
    assert document["type"] == problem.type
    assert re.fullmatch(r"urn:forebay:problem:[a-z]+(-[a-z]+)*", document["type"])
    assert document["title"]
    assert document["title"] == item.title
    assert document["status"] == item.status
    assert 400 <= item.status <= 599
    assert document["detail"] == "Zürich is gone."
    assert document["store"] == "delays"
    assert document["lag"] == {"record_lag": None}
    assert document["retry_after_s"] == 2
    assert "retry_after_s" not in item("Zürich is gone.").document()
    assert str(problem) == "Zürich is gone."


def test_a_command_can_tell_the_operators_faults_from_the_logs() -> None:
    assert not issubclass(ChangelogError, ConfigurationError)
    assert not issubclass(ConfigurationError, Problem)
