"""Parsing and validation of tool arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from strata.shared.tool_arguments import fit_arguments
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.domain.arguments import parse_arguments, read_arguments
from strata.tool_execution.domain.tools import ToolError
from thread_records import record_threads

SEARCH = BUILTIN_TOOLS["conversation_search"]
INSERT = BUILTIN_TOOLS["memory_insert"]
OPEN = BUILTIN_TOOLS["open_files"]

# With halves of surrogate pairs, which JSON can contain.
TEXT = st.text(st.characters(), max_size=5)
NAMES = st.sampled_from(
    sorted({n for t in BUILTIN_TOOLS.values() for n in t.parameters["properties"]})
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT | NAMES, inner),
    max_leaves=10,
)


def test_valid_arguments_pass_unchanged() -> None:
    text = '{"label": "human", "new_str": "Likes\\ttea", "insert_line": 0}'
    assert parse_arguments(INSERT, text) == json.loads(text)


def test_null_for_an_optional_argument_counts_as_missing() -> None:
    text = '{"query": "x", "roles": null, "limit": null, "start_date": null, "end_date": null}'
    assert parse_arguments(SEARCH, text) == {"query": "x"}


@pytest.mark.parametrize("empty", [None, "", "  ", [], 0])
def test_an_empty_optional_argument_counts_as_missing(empty: Any) -> None:
    """For every optional argument of every built-in tool that allows no such value."""
    for tool in BUILTIN_TOOLS.values():
        schema = tool.parameters
        for name, inner in schema["properties"].items():
            if name in schema["required"] or tool.name == "memory":
                continue
            needed = {
                argument: needed_value(schema["properties"][argument])
                for argument in schema["required"]
            }
            arguments = parse_arguments(tool, json.dumps({**needed, name: empty}))
            allowed = empty is not None and Draft202012Validator(inner).is_valid(empty)
            assert arguments == ({**needed, name: empty} if allowed else needed), (tool.name, name)


@pytest.mark.parametrize("name", ["start_date", "end_date"])
def test_an_empty_date_counts_as_missing(name: str) -> None:
    assert parse_arguments(SEARCH, json.dumps({"query": "x", name: ""})) == {"query": "x"}


def needed_value(schema: dict[str, Any]) -> Any:
    if schema["type"] == "array":
        return [needed_value(schema["items"])]
    if schema["type"] == "object":
        inner = schema["properties"]
        return {name: needed_value(inner[name]) for name in schema["required"]}
    return "https://example.com/"


def test_null_of_a_required_argument_is_refused() -> None:
    with pytest.raises(ToolError, match="'query' is wrong"):
        parse_arguments(SEARCH, '{"query": null}')


@pytest.mark.parametrize("limit", ['"4"', "4.0", "4"])
def test_numbers_written_as_text_are_converted(limit: str) -> None:
    assert parse_arguments(SEARCH, f'{{"query": "x", "limit": {limit}}}')["limit"] == 4


def test_nulls_inside_of_lists_count_as_missing() -> None:
    text = '{"file_requests": [{"file_name": "a/b", "offset": null, "length": null}]}'
    assert parse_arguments(OPEN, text) == {"file_requests": [{"file_name": "a/b"}]}


def test_lists_and_truth_values_written_as_text_are_converted() -> None:
    requests = [{"file_name": "a/b", "offset": "3"}]
    text = json.dumps({"file_requests": json.dumps(requests), "close_all_others": "true"})
    assert parse_arguments(OPEN, text) == {
        "file_requests": [{"file_name": "a/b", "offset": 3}],
        "close_all_others": True,
    }


def test_text_that_looks_like_a_number_stays_text() -> None:
    text = '{"label": "human", "new_str": "42", "insert_line": "2"}'
    assert parse_arguments(INSERT, text) == {"label": "human", "new_str": "42", "insert_line": 2}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"file_requests": [{"offset": 1}]}', "missing 'file_name' in 'file_requests\\[0\\]'"),
        ('{"file_requests": [{"file_name": "a/b", "line": 1}]}', "unknown 'line' in .*'offset'"),
        ('{"file_requests": "a/b"}', "'file_requests' is wrong: 'a/b' is not of type 'array'"),
        ('{"file_requests": {"file_name": "a/b"}}', "'file_requests' is wrong"),
        (
            '{"file_requests": [{"file_name": "a/b", "offset": 5000000000}]}',
            "'file_requests\\[0\\].offset' is too large a number",
        ),
        ('{"file_requests": [{"file_name": "\\ud800"}]}', "contains an incomplete character"),
        ('{"file_requests": [{"file_name": "a\\u0000"}]}', "contains the character NUL"),
    ],
)
def test_errors_inside_of_lists_have_an_index(text: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        parse_arguments(OPEN, text)


def test_valid_values_are_listed_even_with_many_long_wrong_ones() -> None:
    with pytest.raises(ToolError) as caught:
        parse_arguments(SEARCH, json.dumps({"query": "x", "roles": ["x" * 900] * 200}))
    message = str(caught.value)
    assert "'roles[0]' must be one of 'assistant', 'user', 'tool';" in message
    assert message.endswith("; and more.")


def test_tool_without_arguments_states_that_it_takes_none() -> None:
    finish = BUILTIN_TOOLS["memory_finish_edits"]
    assert parse_arguments(finish, "") == {}
    with pytest.raises(ToolError, match="unknown 'label' \\(it takes none\\)"):
        parse_arguments(finish, '{"label": "human"}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1,2]", "must be one JSON object, not an array"),
        ("null", "not null"),
        ("3", "not a number"),
        ('"x"', "not a string"),
        ("{", "not valid JSON"),
        ('{"label": "a"}', "missing 'new_str'"),
        ('{"label": "a", "new_str": "b", "lable": 1}', "unknown 'lable' \\(it takes 'label'"),
        ('{"label": "a", "new_str": "b", "insert_line": "x"}', "'insert_line' is wrong"),
    ],
)
def test_errors_are_returned_to_the_model(text: str, says: str) -> None:
    with pytest.raises(ToolError, match=says):
        parse_arguments(INSERT, text)


def test_missing_arguments_are_named() -> None:
    with pytest.raises(ToolError, match="missing 'label', 'new_str'"):
        parse_arguments(INSERT, "")


@given(value=JSON)
def test_any_json_results_in_arguments_or_a_tool_error(value: Any) -> None:
    for tool in BUILTIN_TOOLS.values():
        try:
            parsed = parse_arguments(tool, json.dumps(value))
        except ToolError as error:
            str(error).encode()
            continue
        assert set(tool.parameters["required"]) <= set(parsed) <= set(tool.parameters["properties"])


@given(text=st.text())
def test_any_text_results_in_arguments_or_a_tool_error(text: str) -> None:
    try:
        parse_arguments(SEARCH, text)
    except ToolError as error:
        assert "conversation_search" in str(error)


async def test_long_arguments_are_checked_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop = record_threads(
        monkeypatch, "strata.tool_execution.domain.arguments.fit_arguments", fit_arguments
    )
    for length in (10, 100_000):
        text = json.dumps({"label": "human", "new_str": "x" * length, "insert_line": 0})
        assert await read_arguments(INSERT, text) == json.loads(text)
    assert on_loop == [True, False]
    with pytest.raises(ToolError, match="not valid JSON"):
        await read_arguments(INSERT, "x" * 100_000)


async def test_costly_check_of_short_arguments_is_begun_again_on_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_loop = record_threads(
        monkeypatch, "strata.tool_execution.domain.arguments.fit_arguments", fit_arguments
    )
    numbers = {"type": "array", "items": {"anyOf": [*[{"type": "string"}] * 200, {}]}}
    tool = replace(INSERT, parameters={"type": "object", "properties": {"numbers": numbers}})
    assert await read_arguments(tool, '{"numbers": [1]}') == {"numbers": [1]}
    assert on_loop == [True]
    many = {"numbers": [1] * 50}
    assert await read_arguments(tool, json.dumps(many)) == many
    assert on_loop == [True, True, False]
