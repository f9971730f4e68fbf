"""Any schema can be rewritten in the subset that Gemini accepts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from doubles.services import refusal
from strata.agent_loop.models.openai_api.plain_schema import to_plain

NAMES = st.sampled_from(["a", "b", "type", "enum"])
LEAVES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["string", "integer", "null", "array", "object", ["string", "null"]]
        ),
        "format": st.sampled_from(["uri", "date-time", "int32"]),
        "enum": st.lists(st.sampled_from(["x", "", None, 1]), max_size=3),
        "const": st.sampled_from(["x", 2, None]),
        "exclusiveMinimum": st.integers(0, 3),
        "additionalProperties": st.booleans(),
        "$ref": st.sampled_from(["#", "#/$defs/gone", "#/properties/a"]),
    },
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    lists = st.lists(inner, max_size=2)
    return st.builds(
        lambda leaf, more: {**leaf, **more},
        LEAVES,
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(NAMES, inner, max_size=2),
                "required": st.lists(NAMES, max_size=2),
                "items": inner,
                "anyOf": lists,
                "oneOf": lists,
                "allOf": lists,
            },
        ),
    )


SCHEMAS = st.recursive(LEAVES, _nested, max_leaves=6)


@given(SCHEMAS)
def test_any_schema_can_be_rewritten(schema: dict[str, Any]) -> None:
    root = {"type": "object", "properties": {"x": {"type": "string"}, "y": schema}}
    function = {"name": "f", "description": "", "parameters": to_plain(root)}
    body = {
        "model": "gemini-3",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": function}],
    }
    assert refusal("gemini", body) is None


def test_recursive_references_are_expanded_to_a_limit() -> None:
    several = {"$ref": "#"}
    root = {"type": "object", "properties": dict.fromkeys("abcd", several)}
    assert str(to_plain(root)).count("properties") <= 2_000
