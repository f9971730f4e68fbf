"""Error messages for invalid calls of the ``memory`` tool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS
from strata.tool_execution.domain.arguments import parse_arguments
from strata.tool_execution.domain.tools import ToolError

MEMORY = BUILTIN_TOOLS["memory"]


def refused(**arguments: Any) -> str:
    with pytest.raises(ToolError) as raised:
        parse_arguments(MEMORY, json.dumps(arguments))
    return str(raised.value)


def test_unknown_command_gets_the_list_of_commands() -> None:
    assert refused(command="view", path="human") == (
        "Error: Unknown command 'view'. Supported commands: create, str_replace, insert, delete,"
        " rename"
    )


def test_missing_command_is_named() -> None:
    assert "missing 'command'" in refused(path="human")
    assert "'command' is wrong" in refused(command=["create"], path="human")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"command": "create", "file_text": "x"}, "create needs 'path'"),
        ({"command": "create", "path": ""}, "create needs 'path'"),
        ({"command": "str_replace"}, "str_replace needs 'path', 'old_str', 'new_str'"),
        ({"command": "str_replace", "path": "a", "old_str": "x"}, "str_replace needs 'new_str'"),
        ({"command": "insert", "path": "a", "file_text": "x"}, "insert needs 'insert_text'"),
        ({"command": "delete"}, "delete needs 'path'"),
        ({"command": "rename"}, "rename needs a block"),
        ({"command": "rename", "old_path": "a"}, "rename needs 'new_path' or 'description'"),
        (
            {"command": "rename", "path": "a", "old_path": "b", "new_path": "c"},
            "'path' and 'old_path' name different blocks",
        ),
    ],
)
def test_missing_arguments_of_a_command_are_named(arguments: dict[str, Any], says: str) -> None:
    assert says in refused(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "create", "path": "a"},
        {"command": "create", "path": "/memories/a", "file_text": "x", "description": "y"},
        {"command": "str_replace", "path": "a", "old_str": "x", "new_str": ""},
        {"command": "insert", "path": "a", "insert_text": "x"},
        {"command": "insert", "path": "a", "insert_text": "x", "insert_line": 0},
        {"command": "delete", "path": "a"},
        {"command": "rename", "old_path": "a", "new_path": "b"},
        {"command": "rename", "path": "a", "new_path": "b"},
        {"command": "rename", "path": "a", "description": "y"},
    ],
)
def test_complete_commands_pass(arguments: dict[str, Any]) -> None:
    assert parse_arguments(MEMORY, json.dumps(arguments)) == arguments


def test_nulls_of_a_strict_schema_pass() -> None:
    nothing = dict.fromkeys(MEMORY.parameters["properties"])
    arguments = {**nothing, "command": "insert", "path": "a", "insert_text": "x"}
    assert set(parse_arguments(MEMORY, json.dumps(arguments))) == {"command", "path", "insert_text"}


def test_wrong_types_are_reported_by_the_schema() -> None:
    assert "'path' is wrong" in refused(command="delete", path=5)
    assert "unknown 'text'" in refused(command="delete", path="a", text="x")
