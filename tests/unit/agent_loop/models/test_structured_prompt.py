"""The prompt of the structured mode."""

from jsonschema import Draft202012Validator

from strata.agent_loop.models.domain import ChatMessage, ToolSchema
from strata.agent_loop.models.structured_prompt import render, reply_schema

EDIT = ToolSchema(
    "core_memory_append",
    "Adds a line to a block.\n\nA long explanation that a small model has no use for.",
    {
        "type": "object",
        "properties": {
            "label": {"type": "string", "description": "Which block."},
            "content": {"type": "string", "title": "Content"},
        },
        "required": ["label", "content"],
    },
)
SEARCH = ToolSchema(
    "conversation_search",
    "Searches.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)


def test_examples_are_of_offered_tools_only() -> None:
    text = render([ChatMessage.system("s")], [EDIT])[0].text
    assert '{"tool": "core_memory_append", "arguments": {"label": "human"' in text
    assert "conversation_search" not in text
    assert "archival" not in text


def test_a_tool_with_other_parameters_gets_no_wrong_example() -> None:
    odd = ToolSchema("conversation_search", "Searches.", {"type": "object", "properties": {}})
    assert '"query"' not in render([ChatMessage.system("s")], [odd])[0].text


def test_descriptions_are_brief() -> None:
    text = render([ChatMessage.system("s")], [EDIT, SEARCH])[0].text
    assert "Adds a line to a block." in text
    assert "no use for" not in text


def test_the_schema_binds_the_arguments_of_each_tool() -> None:
    validator = Draft202012Validator(dict(reply_schema([EDIT, SEARCH])))
    good = {"tool": "core_memory_append", "arguments": {"label": "human", "content": "x"}}
    assert validator.is_valid(good)
    assert not validator.is_valid({"tool": "core_memory_append", "arguments": {"query": "x"}})
    assert not validator.is_valid({"tool": "unknown", "arguments": {}})
    assert not validator.is_valid({**good, "more": 1})


def test_the_schema_carries_no_annotations() -> None:
    assert "description" not in str(reply_schema([EDIT]))
    assert "'title'" not in str(reply_schema([EDIT]))
