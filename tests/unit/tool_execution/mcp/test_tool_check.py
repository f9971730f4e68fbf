"""The check of a server's tools: usability, names and approval."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from image_samples import encoded, padded, png
from strata.protocol.images import MAX_IMAGE_BYTES
from strata.shared.json_schemas import UnusableSchemaError
from strata.tool_execution.domain.mcp import McpTool, ReportedTool, ToolState, reconcile
from strata.tool_execution.domain.tools import ToolError
from strata.tool_execution.mcp.results import read_result
from strata.tool_execution.mcp.tool_check import check_tools, registry_name, usable_schema

TOWN = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
KEYWORDS = st.sampled_from(
    ["type", "properties", "$ref", "$defs", "items", "anyOf", "pattern", "required", "enum", "not"]
)
SCHEMA_LIKE = st.recursive(
    st.sampled_from(["object", "string", "#/$defs/a", "#", "http://x.org/"]) | ANY_JSON,
    lambda inner: st.dictionaries(KEYWORDS | st.just("a"), inner | st.lists(inner, max_size=2)),
    max_leaves=20,
)


@given(st.lists(ANY_JSON | st.fixed_dictionaries({"name": st.text(max_size=9)}), max_size=6))
def test_any_listing_results_in_one_checked_tool_per_name(listed: list[Any]) -> None:
    reported = check_tools("server", listed)
    assert len({tool.name for tool in reported}) == len(reported)
    usable = [tool for tool in reported if not tool.problem]
    assert len({tool.tool_name for tool in usable}) == len(usable)


def test_tools_with_invalid_names_are_quarantined_and_affect_no_other() -> None:
    odd = ["", "a\tb", "x" * 201, "\ud83d", "\ufffd"]
    reported = check_tools("s", [{"name": name, "inputSchema": TOWN} for name in [*odd, "x" * 200]])
    problems = {tool.name: tool.problem for tool in reported}
    assert [name for name, problem in problems.items() if not problem] == ["\ufffd", "x" * 200]
    assert "unprintable" in problems["a\ufffdb"]
    assert [tool.name for tool in check_tools("s", [{"name": "x" * 201}])] == ["x" * 200]


@given(SCHEMA_LIKE)
def test_usable_schemas_are_closed_object_schemas(schema: Any) -> None:
    try:
        usable = usable_schema(schema)
    except UnusableSchemaError:
        return
    Draft202012Validator.check_schema(usable)
    assert usable["type"] == "object"
    assert isinstance(usable["properties"], dict)
    # It can be applied without requests.
    list(Draft202012Validator(usable).iter_errors({"a": 1}))


@given(st.from_regex(r"\A[a-z](_?[a-z0-9-]){0,11}\Z"), st.text(min_size=1, max_size=80))
def test_names_are_valid_for_model_providers(server: str, name: str) -> None:
    made = registry_name(server, name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_\-]{0,47}", made)
    assert made == registry_name(server, name)
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) and len(server) + 2 + len(name) <= 48:
        assert made == f"{server}__{name}"


@given(st.sets(st.text(alphabet="ab.ü/ ", min_size=1, max_size=60), min_size=2, max_size=6))
def test_shortened_names_stay_unique(names: set[str]) -> None:
    assert len({registry_name("server", name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("schema", "properties"),
    [
        (
            {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "(a*)*"}}},
            {"pattern": {"type": "string"}},
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "$id": "http://x.org/",
                "type": "object",
                "properties": {"a": {"$ref": "#/definitions/b"}},
                "definitions": {"b": {"type": "integer", "pattern": "x"}},
            },
            {"a": {"type": "integer"}},
        ),
        (
            {"type": "object", "properties": {"a": {"items": {"propertyNames": {}, "minimum": 1}}}},
            {"a": {"items": {"minimum": 1}}},
        ),
        ({"type": "object"}, {}),
    ],
)
def test_restricting_keywords_are_removed_from_schemas(schema: Any, properties: Any) -> None:
    assert usable_schema(schema)["properties"] == properties


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "x",
        {"type": "string"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"$ref": "https://x.org/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}},
        {"type": "object", "properties": {"a": {"type": 3}}},
        {"type": "object", "description": "\ud800"},
        {"type": "object", "description": "a\0"},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(3000)}},
    ],
)
def test_unusable_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(UnusableSchemaError):
        usable_schema(schema)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(UnusableSchemaError):
        usable_schema(schema)


def test_tools_with_the_same_name_are_both_omitted() -> None:
    item = {"name": "a", "inputSchema": TOWN}
    [only] = check_tools("server", [item, {**item, "description": "Another."}])
    assert "twice" in only.problem


REPORTS = st.lists(
    st.builds(
        ReportedTool,
        name=st.sampled_from("abc"),
        tool_name=st.just("t"),
        description=st.sampled_from(["one", "two", "three"]),
        problem=st.sampled_from(["", "", "", "odd"]),
    ),
    unique_by=lambda tool: tool.name,
    max_size=3,
)


@given(st.lists(REPORTS, max_size=8))
def test_only_approved_definitions_are_usable(listings: list[list[ReportedTool]]) -> None:
    known: dict[str, McpTool] = {}
    first: dict[str, str] = {}
    for listing in listings:
        known = {tool.name: tool for tool in reconcile(known, listing)}
        reported = {tool.name: tool for tool in listing}
        for name, tool in known.items():
            now = reported.get(name)
            if now is not None and not now.problem:
                first.setdefault(name, now.digest)
            usable = now is not None and not now.problem and now.digest == first[name]
            assert (tool.state is ToolState.APPROVED) == usable
            assert bool(tool.reason) != usable
            assert tool.approved_digest == first.get(name, "")


@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "isError"]), ANY_JSON))
def test_any_answer_of_a_server_is_a_value_or_a_tool_error(result: dict[str, Any]) -> None:
    try:
        output = read_result("t", result)
    except ToolError:
        return
    json.dumps(output.value, ensure_ascii=False).encode()


def image_content(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "mimeType": media_type, "data": base64.b64encode(data).decode()}


def test_images_of_a_result_are_returned_beside_its_text() -> None:
    photo = encoded("JPEG", 4, 3)
    blob = {"uri": "a:b", "mimeType": "image/png", "blob": base64.encodebytes(png()).decode()}
    result = {
        "content": [
            {"type": "text", "text": "Two images:"},
            # The bytes decide about the type of an image, not the type that the server names.
            image_content(photo, "image/png"),
            {"type": "resource", "resource": blob},
        ]
    }
    output = read_result("t", result)
    assert output.value == (
        "Two images:\n[image 1: image/jpeg, 4 x 3]\n[resource a:b] [image 2: image/png, 2 x 1]"
    )
    assert [(i.header.media_type, i.data) for i in output.images] == [
        ("image/jpeg", photo),
        ("image/png", png()),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (image_content(b"\x89PNG"), "it is not a PNG, JPEG, GIF or WebP file"),
        ({"type": "image", "mimeType": "image/png", "data": "%%%"}, "it is not valid Base64"),
        ({"type": "image"}, "[image, unknown type"),
        (image_content(padded(png(), MAX_IMAGE_BYTES + 1)), "it has 3,932,161 bytes"),
        (image_content(png(9000)), "it has 9000 x 1 pixels"),
    ],
    ids=["damaged", "no Base64", "nothing", "too large", "too wide"],
)
def test_image_that_cannot_be_shown_is_named_in_the_text(
    content: dict[str, Any], reason: str
) -> None:
    output = read_result("t", {"content": [content]})
    assert output.images == ()
    assert reason in output.value


def test_images_of_a_result_are_limited_in_number_and_size() -> None:
    many = read_result("t", {"content": [image_content(png(shade=n)) for n in range(25)]})
    assert len(many.images) == 20
    assert many.value.count("the images are too many") == 5
    large = [image_content(padded(png(shade=n), MAX_IMAGE_BYTES)) for n in range(4)]
    assert len(read_result("t", {"content": large}).images) == 3


@pytest.mark.parametrize(
    ("execution", "usable"),
    [({"taskSupport": "required"}, False), ({"taskSupport": "optional"}, True), (None, True)],
)
def test_tools_that_run_only_as_tasks_cannot_be_used(execution: Any, usable: bool) -> None:
    listed = {"name": "dig", "description": "Digs.", "inputSchema": TOWN, "execution": execution}
    [tool] = check_tools("garden", [listed])
    assert (tool.problem == "") is usable


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        # As the server of Notion lists a tool.
        ({"anyOf": [{"properties": {"text": {}}}, {"properties": {"url": {}}}]}, {"url": "x"}),
        ({"allOf": [{"oneOf": [{"properties": {"a": {"type": "null"}}}]}]}, {"a": None}),
        ({"if": {"required": ["a"]}, "then": {"properties": {"b": {}}}}, {"b": 1}),
        ({"dependentSchemas": {"a": {"properties": {"b": {}}}}, "properties": {"a": {}}}, {"b": 1}),
        ({"patternProperties": {"^x-": {}}}, {"x-a": 1}),
        ({"patternProperties": {"^x-": {}}, "additionalProperties": False}, {"x-a": 1}),
        (
            {"properties": {"a": {"patternProperties": {"x": {}}, "additionalProperties": False}}},
            {"a": {"x": 1}},
        ),
    ],
)
def test_arguments_that_parts_of_a_schema_declare_are_accepted(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    usable = usable_schema({"type": "object", **schema})
    assert Draft202012Validator(usable).is_valid(arguments)


def test_alternatives_of_declared_arguments_leave_a_schema_closed() -> None:
    alternatives = [{"required": ["town"], "properties": {"town": {"minLength": 1}}}]
    assert usable_schema({**TOWN, "anyOf": alternatives})["additionalProperties"] is False


@pytest.mark.parametrize("text", ["as text", "long " * 20_000])
@pytest.mark.parametrize("levels", [101, 700, 1_100, 50_000])
def test_deep_structured_content_is_omitted(levels: int, text: str) -> None:
    structured: object = []
    for _ in range(levels - 1):
        structured = [structured]
    content = [{"type": "text", "text": text}]
    output = read_result("t", {"content": content, "structuredContent": structured})
    assert output.value == text


@pytest.mark.parametrize(
    ("structured", "reason"),
    [({"code": 7}, '{"code": 7}'), ("no such town", "no such town"), ({}, "it gave no reason.")],
)
def test_the_reason_of_an_error_can_be_structured(structured: Any, reason: str) -> None:
    with pytest.raises(ToolError) as error:
        read_result("t", {"content": [], "structuredContent": structured, "isError": True})
    assert str(error.value) == f"Error executing function t: {reason}"


def test_structured_content_that_fits_is_returned_although_its_text_does_not() -> None:
    # Many servers indent the JSON in their text.
    structured = {"rows": [{"id": number} for number in range(3_000)]}
    content = [{"type": "text", "text": json.dumps(structured, indent=8)}]
    result = {"content": content, "structuredContent": structured}
    assert len(content[0]["text"]) > 50_000 > len(json.dumps(structured))
    assert read_result("t", result).value == structured
    structured["rows"] *= 2
    assert read_result("t", result).value == content[0]["text"]


@pytest.mark.parametrize(
    ("listed", "usable"),
    [
        (
            {"type": "array", "items": [{"type": "number"}, {"type": "string"}], "minItems": 2},
            {
                "type": "array",
                "prefixItems": [{"type": "number"}, {"type": "string"}],
                "minItems": 2,
            },
        ),
        (
            {"items": [{"pattern": "x"}], "additionalItems": False},
            {"prefixItems": [{}], "items": {"not": {}}},
        ),
        ({"items": [], "additionalItems": {"type": "null"}}, {"items": {"type": "null"}}),
        ({"minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        ({"exclusiveMinimum": True}, {}),
        ({"minimum": 1, "exclusiveMinimum": 0}, {"minimum": 1, "exclusiveMinimum": 0}),
    ],
)
def test_keywords_of_older_drafts_are_replaced(listed: Any, usable: Any) -> None:
    schema = usable_schema({"type": "object", "properties": {"a": listed, "items": listed}})
    assert schema["properties"] == {"a": usable, "items": usable}


def test_keywords_that_are_null_count_as_left_out() -> None:
    inner = {"type": "string", "description": None, "enum": None, "default": None, "const": None}
    schema = {"type": "object", "properties": {"enum": inner}, "required": None, "$defs": None}
    assert usable_schema(schema) == {
        "type": "object",
        "properties": {"enum": {"type": "string", "default": None, "const": None}},
        "required": [],
        "additionalProperties": False,
    }
    assert usable_schema({"type": "object", "properties": None})["properties"] == {}
    # A null that is valid stays, so that the version of an approved tool does not change.
    unknown: Any = {"type": "object", "properties": {}, "required": [], "x-order": None}
    assert usable_schema(unknown) == {**unknown, "additionalProperties": False}


def test_content_and_texts_that_are_null_are_empty() -> None:
    assert read_result("t", {"content": None}).value == ""
    assert read_result("t", {"content": None, "structuredContent": {"a": 1}}).value == {"a": 1}
    parts = [{"type": "text", "text": None}, {"type": "text", "text": "b"}]
    assert read_result("t", {"content": parts}).value == "b"
    with pytest.raises(ToolError):
        read_result("t", {})


def test_an_empty_list_of_values_is_removed() -> None:
    schema = {"type": "object", "properties": {"enum": {"type": "string", "enum": []}}}
    assert usable_schema(schema)["properties"] == {"enum": {"type": "string"}}
