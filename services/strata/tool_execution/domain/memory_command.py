"""Arguments that each command of the ``memory`` tool needs, which a flat schema cannot express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Command:
    required: tuple[str, ...]
    hint: str = ""


_COMMANDS = {
    "create": _Command(("path",), "'path' is the label of the new block."),
    "str_replace": _Command(
        ("path", "old_str", "new_str"), "To delete text, give an empty 'new_str'."
    ),
    "insert": _Command(("path", "insert_text"), "Without 'insert_line' it goes to the end."),
    "delete": _Command(("path",), "'path' is the label of the block."),
}
COMMANDS = (*_COMMANDS, "rename")
_SHOWN = 100
_RENAMING = (
    "To rename a block give 'old_path' and 'new_path'; to change its description give 'path' and"
    " 'description'."
)


def problem_of(arguments: Mapping[str, Any]) -> str | None:
    """Returns why the arguments of a command are invalid, as a message for the model; else None.

    An empty path counts as left out, since strict schemas make models fill in arguments that they
    do not need.
    """
    command = arguments.get("command")
    if not isinstance(command, str):
        return None
    if command not in COMMANDS:
        supported = ", ".join(COMMANDS)
        return f"Error: Unknown command '{command[:_SHOWN]}'. Supported commands: {supported}"
    if command == "rename":
        return _renaming_problem(arguments)
    rule = _COMMANDS[command]
    missing = [
        name
        for name in rule.required
        if arguments.get(name) is None or (name == "path" and not arguments[name])
    ]
    if not missing:
        return None
    names = ", ".join(f"'{name}'" for name in missing)
    return f"Invalid arguments for memory: {command} needs {names}. {rule.hint}"


def _renaming_problem(arguments: Mapping[str, Any]) -> str | None:
    path, old, new = (arguments.get(name) or "" for name in ("path", "old_path", "new_path"))
    if path and old and path != old:
        return (
            "Invalid arguments for memory: 'path' and 'old_path' name different blocks. "
            + _RENAMING
        )
    if not (path or old):
        return f"Invalid arguments for memory: rename needs a block. {_RENAMING}"
    if not new and arguments.get("description") is None:
        return (
            f"Invalid arguments for memory: rename needs 'new_path' or 'description'. {_RENAMING}"
        )
    return None
