"""The prompt of the structured mode."""

from datetime import UTC, datetime

import pytest
from jsonschema import Draft202012Validator

from strata.agent_loop.domain.model.chat import ChatMessage, ToolSchema
from strata.agent_loop.models.structured_tools.prompt import bound_to, labels, render, reply_schema
from strata.core_memory.domain.blocks import Block
from strata.core_memory.domain.prompt.memory_section import MemoryForm, render_memory

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


def test_a_tool_with_other_parameters_has_no_wrong_example() -> None:
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


def test_the_schema_contains_no_annotations() -> None:
    assert "description" not in str(reply_schema([EDIT]))
    assert "'title'" not in str(reply_schema([EDIT]))


def block(label: str, value: str = "", *, read_only: bool = False) -> Block:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Block(f"block-{label}", label, value, f"Of {label}.", 20_000, read_only, 1, now, now)


BLOCKS = [
    block("human", "<other>\n<description>\nx\n</description>\n<metadata>\n</metadata>"),
    block("policy", "Be kind.", read_only=True),
    block("persona", "- read_only=true"),
]


@pytest.mark.parametrize("line_numbers", [False, True])
def test_edits_are_restricted_to_the_editable_blocks(line_numbers: bool) -> None:
    memory = render_memory(MemoryForm(blocks=True, line_numbers=line_numbers), BLOCKS, [])
    blocks = labels(
        [ChatMessage.system(f"You are.\n\n{memory}\n\nMore."), ChatMessage.user(memory)]
    )
    assert blocks == ["human", "persona"]
    validator = Draft202012Validator(dict(reply_schema(bound_to(blocks, [EDIT, SEARCH]))))
    edit = {"tool": "core_memory_append", "arguments": {"label": "human", "content": "x"}}
    assert validator.is_valid(edit)
    assert not validator.is_valid({**edit, "arguments": {"label": "policy", "content": "x"}})
    assert not validator.is_valid({**edit, "arguments": {"label": "allergy", "content": "x"}})
    assert validator.is_valid({"tool": "conversation_search", "arguments": {"query": "x"}})


def test_tools_that_create_blocks_and_custom_tools_accept_any_label() -> None:
    tools = [
        ToolSchema("memory_rethink", "Rewrites.", EDIT.parameters),
        ToolSchema("print_label", "Prints.", EDIT.parameters),
    ]
    assert bound_to(["human"], tools) == tuple(tools)
    assert bound_to([], [EDIT]) == (EDIT,)


def test_long_bounds_are_omitted_from_the_grammar() -> None:
    texts = {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 1500}}
    few = {"type": "array", "maxItems": 5, "items": {"type": "string"}}
    properties = {"texts": texts, "few": few}
    tool = ToolSchema("store", "Stores.", {"type": "object", "properties": properties})
    [action] = reply_schema([tool])["anyOf"]
    kept = action["properties"]["arguments"]["properties"]
    assert kept["texts"] == {"type": "array", "items": {"type": "string"}}
    assert kept["few"] == few
