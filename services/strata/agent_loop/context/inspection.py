"""Describes the parts of a context window and their sizes. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strata.agent_loop.context.requests import View, view_of
from strata.agent_loop.context.token_budget import TokenBudget
from strata.agent_loop.domain.agent.agents import Agent, CompactionSettings
from strata.agent_loop.domain.conversation.messages import Message, Window
from strata.agent_loop.domain.model.chat import DEFAULT_ENDPOINT_TYPE, ModelSettings
from strata.agent_loop.domain.ports import BoundModel, MemorySection
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.models.tokens import TokenEstimator, messages_bytes, tools_bytes
from strata.agent_loop.prompts.parts import SystemPart, parts_of
from strata.shared.messages import MessageRole

# Used if no model is configured: the most common protocol and the default window.
_NO_MODEL = ModelSettings("", DEFAULT_ENDPOINT_TYPE, "")

# Wire names of the parts of a system message.
_NAMES = {
    "system": "system prompt",
    "blocks": "memory blocks",
    "files": "files",
    "rules": "tool rules",
    "metadata": "metadata",
}


@dataclass(frozen=True, slots=True)
class WindowPart:
    """One part of a window: its size, and how many items it has."""

    name: str
    tokens: int
    characters: int
    count: int


@dataclass(frozen=True, slots=True)
class NextRequest:
    """The content of the next model request of a conversation.

    Attributes:
        agent: The agent.
        window: The window, with the system message that a turn would build now.
        counted: The messages of the window, with the stored system message.
        tools: The tools that the model would be offered.
        bound: The model; None if the agent has no usable model.
        section: The memory section in the new system message.
    """

    agent: Agent
    window: Window
    counted: Sequence[Message]
    tools: ToolSet
    bound: BoundModel | None
    section: MemorySection

    @property
    def settings(self) -> ModelSettings:
        """Settings of the model; without a model, settings of the most common protocol."""
        return _NO_MODEL if self.bound is None else self.bound.settings

    @property
    def view(self) -> View:
        """How the model is shown messages."""
        return view_of(self.settings, self.agent)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of the system message and the tools."""
        return self.view.size(self.window.messages[:1]) + tools_bytes(self.tools.schemas)

    def token_budget(self, tokens: TokenEstimator) -> TokenBudget:
        """Returns the token budget of the window.

        Its ratio of bytes per token comes from the model's last exact count of the window.
        """
        token_budget = TokenBudget(tokens, self.settings, self.agent.id)
        token_budget.read(self.counted, self.tools, self.view)
        return token_budget

    def with_compaction(self, settings: CompactionSettings | None) -> NextRequest:
        """Returns the request of an agent with these settings over its own."""
        if settings is None:
            return self
        compaction = settings.over(self.agent.compaction)
        return replace(self, agent=replace(self.agent, compaction=compaction))


def describe(
    window: Window, toolset: ToolSet, view: View, estimate: Callable[[int], int]
) -> list[WindowPart]:
    """Returns the parts of a window as the model sees it; `estimate` converts bytes to tokens."""
    text = window.messages[0].text if window.messages else ""
    parts = parts_of(text)
    window_parts = [_of_text(name, parts[part], estimate) for name, part in _NAMES.items()]
    characters = sum(
        len(tool.name) + len(tool.description) + len(json.dumps(dict(tool.parameters)))
        for tool in toolset.schemas
    )
    tokens = estimate(tools_bytes(toolset.schemas))
    window_parts.append(WindowPart("tools", tokens, characters, len(toolset.tools)))
    summaries = [m for m in window.messages[1:] if m.role is MessageRole.SUMMARY]
    others = [m for m in window.messages[1:] if m.role is not MessageRole.SUMMARY]
    window_parts.append(_of_messages("summary", summaries, view, estimate))
    window_parts.append(_of_messages("messages", others, view, estimate))
    return window_parts


def _of_text(name: str, part: SystemPart, estimate: Callable[[int], int]) -> WindowPart:
    size = len(part.text.encode("utf-8", "replace"))
    return WindowPart(name, estimate(size), len(part.text), part.count)


def _of_messages(
    name: str, messages: list[Message], view: View, estimate: Callable[[int], int]
) -> WindowPart:
    [chat] = view.chats_of_request([messages])
    characters = sum(
        len(shown.text) + sum(len(call.arguments) for call in shown.tool_calls) for shown in chat
    )
    return WindowPart(name, estimate(messages_bytes(chat)), characters, len(messages))
