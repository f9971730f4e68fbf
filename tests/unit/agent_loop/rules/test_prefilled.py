"""Arguments that rules prefill for a tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.agent_loop.rules.prefilled import merged, problems_of
from strata.agent_loop.rules.solver import Prefilled

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "kind": {"enum": ["x", 1]},
        "fixed": {"const": True},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "many": {"type": ["array", "null"]},
        "free": {},
        "never": False,
    },
}
values = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(
    st.dictionaries(st.sampled_from(["text", "free"]), st.text(max_size=5)),
    st.dictionaries(st.sampled_from(["text", "free"]), st.text(max_size=5)),
)
def test_prefilled_arguments_override_the_models_and_keep_the_rest(
    wrote: dict[str, Any], overrides: dict[str, Any]
) -> None:
    arguments, wrong = merged(json.dumps(wrote), [Prefilled(json.dumps(overrides), "s")], SCHEMA)
    assert wrong is None
    assert json.loads(arguments) == {**wrote, **overrides}


def test_without_prefilled_arguments_a_call_is_unchanged() -> None:
    assert merged('{ "text":  "x" }', (), SCHEMA) == ('{ "text":  "x" }', None)
    assert merged("", (), SCHEMA) == ("", None)


def test_later_rules_override_earlier_ones() -> None:
    overrides = [Prefilled('{"text": "a", "count": 1}', "s"), Prefilled('{"text": "b"}', "t")]
    arguments, wrong = merged("", overrides, SCHEMA)
    assert (json.loads(arguments), wrong) == ({"text": "b", "count": 1}, None)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("text", ["", "x"], [1, None, ["x"]]),
        ("count", [1, 2.0], [True, 1.5, "1"]),
        ("share", [1, 1.5], [False, "1"]),
        ("kind", ["x", 1], ["y", True]),
        ("fixed", [True], [1, False]),
        ("maybe", ["x", None], [1]),
        ("either", [1.5], [1, "x"]),
        ("many", [[], None], [{}]),
        ("free", [None, 1, {}], []),
        ("never", [], [1]),
    ],
)
def test_prefilled_values_must_match_the_schema(name: str, good: list[Any], bad: list[Any]) -> None:
    assert [problems_of(json.dumps({name: value}), SCHEMA) for value in good] == [[] for _ in good]
    assert all(problems_of(json.dumps({name: value}), SCHEMA) for value in bad)


def test_error_names_the_rule_of_the_prefilled_argument() -> None:
    arguments, wrong = merged(
        '{"text": "x"}', [Prefilled('{"nope": 1}', "InitToolRule(a)")], SCHEMA
    )
    assert arguments == '{"text": "x"}'
    assert wrong == (
        "Invalid prefilled tool arguments from tool rules (source=InitToolRule(a)): "
        "the tool has no argument 'nope'"
    )
    assert problems_of("[1]", SCHEMA)
    assert problems_of("{", SCHEMA)
    assert problems_of("[" * 100_000, SCHEMA)
