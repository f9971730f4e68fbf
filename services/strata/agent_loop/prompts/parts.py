"""Splits a system message into system prompt, memory blocks, tool rules, files and metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.agent_loop.domain.model.chat import ToolSchema
from strata.agent_loop.models.tokens import tools_bytes

_ELEMENTS = {
    "memory blocks": ("<memory_blocks>", "</memory_blocks>"),
    "tool rules": ("<tool_usage_rules>", "</tool_usage_rules>"),
    "files": ("<directories>", "</directories>"),
    "metadata": ("<memory_metadata>", "</memory_metadata>"),
}
_ITEMS = {
    "memory blocks": re.compile(r"^- chars_limit=", re.MULTILINE),
    "tool rules": re.compile(r"^<tool_rule>", re.MULTILINE),
    "files": re.compile(r"^<file status=", re.MULTILINE),
    "metadata": re.compile(r"\A<"),
}


@dataclass(frozen=True, slots=True)
class SystemPart:
    """A part of a system message, and the number of blocks, rules or files in it."""

    text: str
    count: int


def parts_of(text: str) -> dict[str, SystemPart]:
    """Returns the parts of a system message by name.

    The names are ``memory blocks``, ``tool rules``, ``files``, ``metadata``, and ``system prompt``
    for the rest. Missing parts are empty.
    """
    remaining_text, parts = text, {}
    for name, (opening, closing) in _ELEMENTS.items():
        element = _element(text, opening, closing)
        parts[name] = SystemPart(element, len(_ITEMS[name].findall(element)))
        remaining_text = remaining_text.replace(element, "", 1) if element else remaining_text
    return {"system prompt": SystemPart(remaining_text.strip("\n"), 1), **parts}


def system_parts(
    text: str, tools: Sequence[ToolSchema], tokens: Callable[[int], int]
) -> dict[str, int]:
    """Returns the tokens of the fixed parts of every request, by part, including ``tools``.

    Args:
        text: The system message.
        tools: The schemas that the model is offered.
        tokens: Converts bytes to tokens.
    """
    sizes = {
        name: tokens(len(part.text.encode("utf-8", "replace")))
        for name, part in parts_of(text).items()
    }
    return {**sizes, "tools": tokens(tools_bytes(tools))}


def _element(text: str, opening: str, closing: str) -> str:
    start = text.rfind(opening) if opening == "<memory_metadata>" else text.find(f"\n{opening}\n")
    if start < 0:
        return text[: text.find(closing) + len(closing)] if text.startswith(opening) else ""
    end = text.find(closing, start)
    return text[start : end + len(closing)].lstrip("\n") if end >= 0 else ""
