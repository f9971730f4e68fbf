"""Tools are sent in a form that the APIs of OpenAI and Anthropic accept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.anthropic_dialect import _check_tools as check_anthropic
from doubles.openai_dialect import check_tools as check_openai
from strata.agent_loop.domain.model.chat import ToolSchema
from strata.agent_loop.models.offered_tool import offered_tool
from strata.agent_loop.models.openai_api.plain_schema import to_plain
from strata.agent_loop.models.strict_schema import to_strict
from strata.shared.json_schemas import UnusableSchemaError
from strata.tool_execution.mcp.tool_check import usable_schema

TEXT = {"type": "string"}


def offered(schema: Any, *, plain_names: bool = False) -> tuple[str, dict[str, Any]]:
    form = offered_tool(ToolSchema("t", "Does it.", schema), plain_names=plain_names)
    return form.description, form.parameters


def test_a_usual_schema_is_not_changed() -> None:
    schema = {
        "type": "object",
        "properties": {"names": {"type": "array", "items": {"anyOf": [TEXT, {"type": "null"}]}}},
        "required": ["names"],
        "additionalProperties": False,
    }
    for plain_names in (False, True):
        assert offered(schema, plain_names=plain_names) == ("Does it.", schema)


def test_alternatives_at_the_top_are_joined_and_described() -> None:
    schema = {
        "type": "object",
        "properties": {"title": TEXT},
        "required": ["title"],
        "anyOf": [
            {
                "properties": {"kind": {"const": "url"}, "url": TEXT, "title": {}},
                "required": ["kind", "url"],
            },
            {
                "properties": {"kind": {"const": "text"}, "text": TEXT},
                "required": ["kind", "text"],
            },
        ],
    }
    description, parameters = offered(schema)
    assert parameters == {
        "type": "object",
        "properties": {
            "kind": {"anyOf": [{"const": "url"}, {"const": "text"}]},
            "url": TEXT,
            "title": TEXT,
            "text": TEXT,
        },
        "required": ["title", "kind"],
    }
    assert description.startswith("Does it.\nThe arguments must also match this JSON schema: {")
    assert '"required": ["kind", "url"]' in description


def test_a_choice_of_required_arguments_is_described() -> None:
    schema = {
        "type": "object",
        "properties": {"id": TEXT, "name": TEXT},
        "oneOf": [{"required": ["id"]}, {"required": ["name"]}],
        "not": {"required": ["id", "name"]},
    }
    description, parameters = offered(schema)
    assert {"oneOf", "not"}.isdisjoint(parameters)
    assert parameters["required"] == []
    assert '"oneOf": [{"required": ["id"]}, {"required": ["name"]}]' in description


def test_arrays_get_items() -> None:
    pair = {"type": "array", "prefixItems": [TEXT, {"type": ["array", "null"]}]}
    _, parameters = offered({"type": "object", "properties": {"pair": pair}})
    assert parameters["properties"]["pair"]["items"] == {}
    assert parameters["properties"]["pair"]["prefixItems"][1]["items"] == {}


def test_unusual_names_of_arguments_are_described_for_anthropic() -> None:
    schema = {
        "type": "object",
        "properties": {"filter[id]": TEXT, "limit": {"type": "integer"}},
        "required": ["filter[id]", "limit"],
        "additionalProperties": False,
    }
    assert offered(schema) == ("Does it.", schema)
    description, parameters = offered(schema, plain_names=True)
    assert parameters == {
        "type": "object",
        "properties": {"limit": {"type": "integer"}},
        "required": ["limit"],
        "additionalProperties": True,
    }
    assert '{"filter[id]": {"type": "string"}}' in description
    assert 'Required of them are ["filter[id]"]' in description
    long = {"type": "object", "properties": {"ü": {"description": "x" * 3_000}}}
    assert offered(long, plain_names=True)[0].endswith('It also takes the arguments ["ü"]')


@pytest.mark.parametrize("key", ["anyOf", "enum", "const"])
def test_an_object_with_further_conditions_is_not_strict(key: str) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False, key: [{}]}
    assert to_strict(schema) is None


NAMES = st.sampled_from(["a", "b", "filter[id]", "$top", "ü", "x" * 70, ""])
SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {},
            True,
            False,
            TEXT,
            {"type": "array"},
            {"type": ["array", "null"]},
            {"enum": [1, "a", None]},
            {"const": None},
            {"type": "integer", "default": "x", "format": "odd"},
            {"type": "array", "items": [TEXT]},
            {"required": ["a"]},
            {"$ref": "#/$defs/a"},
        ]
    ),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(["anyOf", "oneOf", "allOf", "prefixItems"]),
            st.lists(inner, min_size=1, max_size=3),
            max_size=2,
        )
        | st.dictionaries(
            st.sampled_from(["properties", "dependentSchemas", "patternProperties"]),
            st.dictionaries(NAMES, inner, max_size=3),
            max_size=2,
        )
        | st.dictionaries(
            st.sampled_from(["items", "additionalProperties", "not", "if", "then", "contains"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(NAMES, SCHEMAS, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            **{key: st.lists(SCHEMAS, min_size=1, max_size=3) for key in ("anyOf", "allOf")},
            "oneOf": st.lists(SCHEMAS, min_size=1, max_size=3),
            "not": SCHEMAS,
            "enum": st.just([{}]),
            "$defs": st.dictionaries(st.just("a"), SCHEMAS, max_size=1),
        },
    )
)
def test_each_usable_schema_of_a_server_is_accepted_by_the_apis(listed: Any) -> None:
    try:
        schema = usable_schema(listed)
    except UnusableSchemaError:
        return
    for strict in (False, True):
        description, parameters = offered(schema)
        form = (to_strict(schema) if strict else None) or parameters
        function: dict[str, Any] = {"name": "t", "description": description, "parameters": form}
        if form is not parameters:
            function["strict"] = True
        check_openai({"tools": [{"type": "function", "function": function}]})
    description, parameters = offered(schema, plain_names=True)
    check_anthropic({"tools": [{"name": "t", "input_schema": parameters}]})
    to_plain(parameters)
