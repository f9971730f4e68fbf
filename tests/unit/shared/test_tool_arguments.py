"""Arguments of calls against schemas that clients and MCP servers wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.shared.bounded_validator import BoundedValidator
from strata.shared.tool_arguments import ArgumentsError, fit_arguments

UNIQUE = {"type": "array", "uniqueItems": True}
CLOSED = {"type": "object", "additionalProperties": False}


def parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a tool with one argument, `a`."""
    return {"type": "object", "properties": {"a": schema}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "number", "multipleOf": 0.5}, "9" * 4_000),
        ({"type": "number", "multipleOf": 0.01}, "0.07"),
        ({"type": "number", "multipleOf": 5}, "1e300"),
        (UNIQUE, '[1, true, "1", [1], [true], {"b": 1}, {"b": true}, {}, null, 0]'),
    ],
)
def test_value_that_the_schema_allows_is_passed_on(schema: dict[str, Any], value: str) -> None:
    arguments = fit_arguments("tool", parameters(schema), f'{{"a": {value}}}')
    assert arguments == {"a": json.loads(value)}


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        (CLOSED, '{"b": 1}', "unknown 'b' in 'a' (it takes none)"),
        ({"type": "number", "multipleOf": 0.01}, "0.075", "not a multiple of 0.01"),
        ({"type": "number", "multipleOf": 0.4}, "9" * 4_000, "not a multiple of 0.4"),
        (UNIQUE, '[{"b": [1], "c": 2}, {"c": 2.0, "b": [1.0]}]', "'a' is wrong: it has an item"),
        ({"type": "integer"}, '"1_0"', "is not of type 'integer'"),
        ({"type": "integer"}, '"\\u0661\\u0660"', "is not of type 'integer'"),
        ({"type": "object"}, '{"\\u0000": 1}', "the name '\\x00' contains the character NUL"),
        ({"type": "object"}, '{"\\udc00": 1}', "the name '\\udc00' contains an incomplete char"),
    ],
)
def test_value_that_the_schema_forbids_is_refused_with_its_place(
    schema: dict[str, Any], value: str, problem: str
) -> None:
    with pytest.raises(ArgumentsError) as raised:
        fit_arguments("tool", parameters(schema), f'{{"a": {value}}}')
    assert problem in str(raised.value)
    str(raised.value).encode()


def test_checking_unique_items_takes_linear_time() -> None:
    comparisons = 0

    class Counted(dict[str, int]):
        """An object that counts how often it is compared."""

        __hash__ = None

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return super().__eq__(other)

    items = [Counted(b=number) for number in range(500)]
    assert BoundedValidator(parameters(UNIQUE)).is_valid({"a": items})
    assert not BoundedValidator(parameters(UNIQUE)).is_valid({"a": [*items, {"b": 7}]})
    assert comparisons < 2 * len(items)


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": list(range(100_000))},
        {"a": ["\0"] * 100_000},
        {"k" * 900_000: 1},
        {"k" * 900_000: "\0"},
        {f"key{number}": 1 for number in range(50_000)},
        {"k" * 500_000: [0] * 150_000},
    ],
    ids=["items", "NUL in items", "long name", "long name with NUL", "names", "long name of items"],
)
def test_the_error_for_large_arguments_is_short(arguments: dict[str, Any]) -> None:
    schema = parameters({"type": "array", "items": {"type": "string"}})
    with pytest.raises(ArgumentsError) as raised:
        fit_arguments("tool", schema, json.dumps(arguments))
    assert len(str(raised.value)) < 5_000


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_blank_arguments_count_as_an_empty_object(text: str) -> None:
    assert fit_arguments("tool", parameters({}), text) == {}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"anyOf": [*[{"type": "string"}] * 900, {}]}}, [1] * 300),
        ({"anyOf": [{"type": "integer"}] * 900}, "x" * 50_000),
        ({"anyOf": [{"type": "integer"}] * 900}, [[1] * 20_000]),
        ({"anyOf": [{"items": {}, "maxItems": 0}] * 900}, [1] * 20_000),
        ({"anyOf": [{"uniqueItems": True, "maxItems": 0}] * 900}, [[[1] * 10_000]]),
        ({"anyOf": [CLOSED] * 900}, {f"key{number}": 1 for number in range(5_000)}),
    ],
    ids=["items", "long text", "long list", "items of any kind", "unique items", "members"],
)
def test_checking_many_alternatives_is_bounded(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(ArgumentsError, match="takes too long"):
        fit_arguments("tool", parameters(schema), json.dumps({"a": value}))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"type": "integer", "minimum": 0}}, [1] * 100_000),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x" * 900_000),
        (
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}, "name": {"type": ["string", "null"]}},
                    "required": ["id"],
                    "additionalProperties": False,
                },
            },
            [{"id": 7, "name": "n"}] * 10_000,
        ),
    ],
    ids=["numbers", "text", "objects"],
)
def test_long_arguments_of_a_simple_schema_are_accepted(schema: dict[str, Any], value: Any) -> None:
    text = json.dumps({"a": value}, separators=(",", ":"))
    assert fit_arguments("tool", parameters(schema), text) == {"a": value}
