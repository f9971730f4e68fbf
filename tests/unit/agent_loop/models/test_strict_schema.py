"""Strict schemas keep optional parameters optional."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from doubles import openai_dialect
from strata.agent_loop.models.strict_schema import drop_invented_nulls, to_strict

LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "default": 5, "description": "n"},
        {"type": ["string", "null"]},
        {"enum": ["a", "b"]},
        {"type": "string", "enum": ["x"]},
        {"const": "c"},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    ]
)


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["p", "q", "r"])
    return st.dictionaries(names, inner, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or ["none"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & properties.keys()),
            }
        )
    )


SCHEMAS = objects(
    st.recursive(
        LEAVES,
        lambda inner: objects(inner) | inner.map(lambda items: {"type": "array", "items": items}),
        max_leaves=6,
    )
)
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["a", "b", "c", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["p", "q", "r"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(SCHEMAS)
def test_a_strict_schema_passes_the_strict_rules(schema: dict[str, Any]) -> None:
    strict = to_strict(schema)
    assert strict is not None
    openai_dialect._check_strict(strict, "tool")


@given(SCHEMAS, VALUES)
def test_strict_values_without_nulls_match_the_original(schema: dict[str, Any], value: Any) -> None:
    strict = to_strict(schema)
    assert strict is not None
    if not isinstance(value, dict) or not Draft202012Validator(strict).is_valid(value):
        return
    pruned = json.loads(drop_invented_nulls(json.dumps(value), schema))
    Draft202012Validator(schema).validate(pruned)


@given(SCHEMAS)
def test_the_model_may_omit_every_optional_value(schema: dict[str, Any]) -> None:
    strict = to_strict(schema)
    assert strict is not None
    for name, definition in strict["properties"].items():
        if name not in schema["required"]:
            assert Draft202012Validator(definition).is_valid(None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"x": {"type": "object"}}},
        {"type": "object", "properties": {"x": {}}},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}},
        {"type": "object", "properties": {"x": {"type": "array"}}},
        {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"x": {"oneOf": [{"type": "string"}]}}},
    ],
)
def test_inexpressible_schema_has_no_strict_form(schema: dict[str, Any]) -> None:
    assert to_strict(schema) is None


def test_nulls_that_the_original_allows_stay() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": {"type": "string"}},
        "required": ["b"],
    }
    assert drop_invented_nulls('{"a": null, "b": null}', schema) == '{"a": null, "b": null}'
    assert drop_invented_nulls("not json", schema) == "not json"


ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
    "required": ["street"],
    "additionalProperties": False,
}
EMAIL = {
    "type": "object",
    "properties": {"kind": {"const": "email"}, "note": {"type": "string"}},
    "required": ["kind"],
    "additionalProperties": False,
}
PHONE = {
    "type": "object",
    "properties": {"kind": {"const": "phone"}, "note": {"type": ["string", "null"]}},
    "required": ["kind", "note"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("definition", "written", "meant"),
    [
        (
            {"anyOf": [ADDRESS, {"type": "null"}]},
            {"street": "x", "zip": None},
            {"street": "x"},
        ),
        ({"anyOf": [ADDRESS, {"type": "null"}]}, None, None),
        (
            {"anyOf": [{"type": "array", "items": ADDRESS}, {"type": "null"}]},
            [{"street": "x", "zip": None}, {"street": "y", "zip": "1"}],
            [{"street": "x"}, {"street": "y", "zip": "1"}],
        ),
        (
            {"type": "array", "items": {"anyOf": [EMAIL, {"anyOf": [PHONE, ADDRESS]}]}},
            [
                {"kind": "phone", "note": None},
                {"kind": "email", "note": None},
                {"street": "x", "zip": None},
            ],
            [{"kind": "phone", "note": None}, {"kind": "email"}, {"street": "x"}],
        ),
    ],
)
def test_nulls_required_by_the_strict_form_of_a_choice_are_removed(
    definition: dict[str, Any], written: Any, meant: Any
) -> None:
    schema = {
        "type": "object",
        "properties": {"it": definition},
        "required": ["it"],
        "additionalProperties": False,
    }
    strict = to_strict(schema)
    assert strict is not None
    Draft202012Validator(strict).validate({"it": written})
    pruned = json.loads(drop_invented_nulls(json.dumps({"it": written}), schema))
    assert pruned == {"it": meant}
    Draft202012Validator(schema).validate(pruned)
