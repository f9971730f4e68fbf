"""What fills a context window, part by part. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from strata.agent_loop.domain.messages import Message, MessageRole, Window
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.requests import View
from strata.agent_loop.models.tokens import messages_bytes, tools_bytes

_ELEMENTS = {
    "blocks": ("<memory_blocks>", "</memory_blocks>"),
    "rules": ("<tool_usage_rules>", "</tool_usage_rules>"),
    "files": ("<directories>", "</directories>"),
    "metadata": ("<memory_metadata>", "</memory_metadata>"),
}
_BLOCK = re.compile(r"^- chars_limit=", re.MULTILINE)
_FILE = re.compile(r"^<file status=", re.MULTILINE)
_RULE = re.compile(r"^<tool_rule>", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class WindowPart:
    """One part: its size, and how many items it holds."""

    name: str
    tokens: int
    characters: int
    count: int


def describe(
    window: Window, toolset: ToolSet, view: View, estimate: Callable[[int], int]
) -> list[WindowPart]:
    """Returns the parts of a window as the model sees it; `estimate` gives the tokens of bytes."""
    text = window.messages[0].text if window.messages else ""
    rest, parts = text, {}
    for name, (opening, closing) in _ELEMENTS.items():
        element = _element(text, opening, closing)
        parts[name] = element
        rest = rest.replace(element, "", 1) if element else rest
    counts = {
        "blocks": len(_BLOCK.findall(parts["blocks"])),
        "files": len(_FILE.findall(parts["files"])),
        "rules": len(_RULE.findall(parts["rules"])),
        "metadata": int(bool(parts["metadata"])),
    }
    found = [_of_text("system", rest.strip("\n"), 1, estimate)]
    found += [
        _of_text(name, parts[name], counts[name], estimate)
        for name in ("blocks", "files", "rules", "metadata")
    ]
    characters = sum(
        len(tool.name) + len(tool.description) + len(json.dumps(dict(tool.parameters)))
        for tool in toolset.schemas
    )
    tokens = estimate(tools_bytes(toolset.schemas))
    found.append(WindowPart("tools", tokens, characters, len(toolset.tools)))
    summaries = [m for m in window.messages[1:] if m.role is MessageRole.SUMMARY]
    others = [m for m in window.messages[1:] if m.role is not MessageRole.SUMMARY]
    found.append(_of_messages("summary", summaries, view, estimate))
    found.append(_of_messages("messages", others, view, estimate))
    return found


def shows_folders(window: Window) -> bool:
    """Says whether the system message of a window lists folders."""
    text = window.messages[0].text if window.messages else ""
    return bool(_element(text, *_ELEMENTS["files"]))


def _element(text: str, opening: str, closing: str) -> str:
    start = text.rfind(opening) if opening == "<memory_metadata>" else text.find(f"\n{opening}\n")
    if start < 0:
        return text[: text.find(closing) + len(closing)] if text.startswith(opening) else ""
    end = text.find(closing, start)
    return text[start : end + len(closing)].lstrip("\n") if end >= 0 else ""


def _of_text(name: str, text: str, count: int, estimate: Callable[[int], int]) -> WindowPart:
    size = len(text.encode("utf-8", "replace"))
    return WindowPart(name, estimate(size), len(text), count)


def _of_messages(
    name: str, messages: list[Message], view: View, estimate: Callable[[int], int]
) -> WindowPart:
    chat = view.chats(messages)
    characters = sum(
        len(shown.text) + sum(len(call.arguments) for call in shown.tool_calls) for shown in chat
    )
    return WindowPart(name, estimate(messages_bytes(chat)), characters, len(messages))
