"""Schemas from outside are bounded, and so is the cost of a check against them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.api.agent_loop.v1.agent_service_pb2 import CreateAgentRequest
from strata.api.common.v1 import response_format_pb2 as pb
from strata.shared.json_schemas import UnusableSchemaError, first_violation, read_schema
from strata.shared.response_formats import response_format_violations

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def request_with(**fields: Any) -> CreateAgentRequest:
    fields.setdefault("name", "person")
    schema = fields.pop("schema", PERSON)
    fields.setdefault("schema_json", json.dumps(schema))
    wire = pb.ResponseFormat(json_schema=pb.JsonSchemaFormat(**fields))
    return CreateAgentRequest(response_format=wire)


def fields_of(request: CreateAgentRequest) -> list[str]:
    return [violation.field for violation in response_format_violations(request)]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE: dict[str, tuple[Any, str]] = {
    "remote reference": (
        {"type": "object", "properties": {"a": {"$ref": "https://example.org/schema"}}},
        "not among its $defs",
    ),
    "file reference": (
        {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}},
        "not among its $defs",
    ),
    "recursive reference": (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A"}},
            "$defs": {"A": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}},
        },
        "holds itself",
    ),
    "reference to itself": (
        {"type": "object", "properties": {"a": {"properties": {"b": {"$ref": "#/properties/a"}}}}},
        "holds itself",
    ),
    "reference to the whole": (
        {"type": "object", "properties": {"a": {"items": {"$ref": "#"}}}},
        "holds itself",
    ),
    "reference to no schema": (
        {"type": "object", "properties": {"a": {"$ref": "#/required/0"}}, "required": ["a"]},
        "not among its $defs",
    ),
    "exponential references": (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/d0"}},
            "$defs": {
                **{
                    f"d{n}": {
                        "type": "object",
                        "properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "abcd"},
                    }
                    for n in range(15)
                },
                "d15": {"type": "string"},
            },
        },
        "nests schemas deeper than 24 levels",
    ),
    "catastrophic pattern": (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+$"}}},
        "'pattern', which is not supported",
    ),
    "pattern of names": ({"type": "object", "patternProperties": {"(a+)+$": {}}}, "not supported"),
    "dynamic reference": ({"type": "object", "$dynamicRef": "#a"}, "not supported"),
    "base of references": ({"$id": "https://example.org", "type": "object"}, "not supported"),
    "deep": (nested(40), "nests schemas deeper than 24 levels"),
    "wide": (
        {"type": "object", "properties": {f"p{n}": {} for n in range(600)}},
        "has more than 500 schemas and subschemas",
    ),
    "no object": ({"type": "array", "items": {}}, "must describe an object"),
    "no schema": (
        {"type": "object", "properties": {"a": {"type": "text"}}},
        "is not a JSON schema",
    ),
    "list": ([1], "must be a JSON schema"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schema_is_refused_with_its_field(name: str) -> None:
    schema, problem = HOSTILE[name]
    request = request_with(schema=schema)
    [violation] = response_format_violations(request)
    assert violation.field == "response_format.json_schema.schema_json"
    assert problem in violation.description


@pytest.mark.parametrize(
    "text", ["", "{", '{"type": "object", "x": 1e999}', "[" * 100_000, " " * 70_000, '"\\ud800"']
)
def test_text_that_is_not_a_schema_is_refused(text: str) -> None:
    assert fields_of(request_with(schema_json=text)) == ["response_format.json_schema.schema_json"]


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "ä", "a\n"])
def test_the_name_of_a_schema_must_be_valid_for_the_providers(name: str) -> None:
    assert fields_of(request_with(name=name)) == ["response_format.json_schema.name"]


def test_long_description_is_refused() -> None:
    wrong = request_with(description="a" * 1001)
    assert fields_of(wrong) == ["response_format.json_schema.description"]


def test_a_format_without_a_kind_is_refused() -> None:
    empty = CreateAgentRequest(response_format=pb.ResponseFormat())
    assert fields_of(empty) == ["response_format"]
    assert not fields_of(CreateAgentRequest())
    assert not fields_of(request_with())
    text = pb.ResponseFormat(text=pb.TextFormat())
    assert not fields_of(CreateAgentRequest(response_format=text))


def test_boolean_schemas_are_converted_to_objects() -> None:
    schema = read_schema('{"properties": {"a": true, "b": false}}')
    assert schema["properties"] == {"a": {}, "b": {"not": {}}}
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"name": "Ana", "age": 3}, ""),
        ({"age": 3}, "missing 'name'"),
        ({"name": 3}, "'name' is wrong: 3 is not of type 'string'"),
        ({"name": "Ana", "more": 1}, "unknown 'more' (it takes 'name', 'age')"),
        ({"name": "Ana", "age": -1}, "'age' is wrong: -1 is less than the minimum of 0"),
    ],
)
def test_first_violation_names_the_member(value: Any, problem: str) -> None:
    assert first_violation(read_schema(json.dumps(PERSON)), value) == problem


def test_the_check_of_choices_in_lists_is_bounded() -> None:
    options = [{"type": "object", "properties": {"a": {"const": n}}} for n in range(400)]
    schema = read_schema(
        json.dumps({"properties": {"rows": {"type": "array", "items": {"anyOf": options}}}})
    )
    value = {"rows": [{"a": 399}] * 100_000}
    assert first_violation(schema, value) == "the check against the schema takes too long"


def test_the_check_of_long_enumerations_is_bounded() -> None:
    schema = read_schema(
        json.dumps({"properties": {"rows": {"type": "array", "items": {"enum": [*range(9000)]}}}})
    )
    value = {"rows": [8999] * 50_000}
    assert first_violation(schema, value) == "the check against the schema takes too long"


@pytest.mark.parametrize("value", ["x" * 50_000, [[1] * 20_000]], ids=["text", "list"])
def test_the_check_of_choices_for_a_long_value_is_bounded(value: Any) -> None:
    schema = read_schema(json.dumps({"properties": {"a": {"anyOf": [{"type": "integer"}] * 900}}}))
    assert first_violation(schema, {"a": value}) == "the check against the schema takes too long"


def test_a_long_reply_with_a_simple_schema_is_checked() -> None:
    schema = read_schema(json.dumps({"properties": {"rows": {"type": "array", "items": PERSON}}}))
    rows = [{"name": f"n{n}", "age": n} for n in range(5_000)]
    assert not first_violation(schema, {"rows": rows})
    assert first_violation(schema, {"rows": [*rows, {}]}) == "missing 'name' in 'rows[5000]'"


def test_a_schema_error_is_an_unusable_schema_error() -> None:
    with pytest.raises(UnusableSchemaError, match="exceeds 64000 characters"):
        read_schema("x" * 64_001)


@pytest.mark.parametrize(
    "definition", [{"description": "x" * 40_000}, {"enum": [str(n) for n in range(5_000)]}]
)
def test_a_definition_with_many_references_is_inlined_up_to_a_limit(definition: Any) -> None:
    references = {f"member_{n}": {"$ref": "#/$defs/long"} for n in range(200)}
    schema = {"type": "object", "$defs": {"long": definition}, "properties": references}
    with pytest.raises(UnusableSchemaError, match="once its references are inlined"):
        read_schema(json.dumps(schema))
    schema["properties"] = dict(list(references.items())[:2])
    assert len(read_schema(json.dumps(schema))["properties"]) == 2


@pytest.mark.parametrize(
    "reference",
    [
        # As generators for TypeScript refer to the first use of a schema.
        "#/properties/start",
        "#/properties/list/anyOf/0/items",
        "#/properties/list/anyOf/1/prefixItems/0",
        "#/properties/a~1b~0%20c",
        "#/$defs/Point",
        "#/definitions/Point",
    ],
)
def test_references_to_parts_of_the_schema_are_inlined(reference: str) -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}}
    options = [{"items": point}, {"prefixItems": [point]}]
    properties = {"start": point, "list": {"anyOf": options}, "a/b~ c": point}
    schema = {
        "type": "object",
        "properties": {**properties, "end": {"$ref": reference, "description": "The end."}},
        "$defs": {"Point": point},
    }
    read = read_schema(json.dumps(schema))
    assert read["properties"]["end"] == {**point, "description": "The end."}
