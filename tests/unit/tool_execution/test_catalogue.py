"""The catalogue of built-in tools matches the definitions and executors of the tool service."""

from __future__ import annotations

from typing import Any

import pytest

from strata.shared.agent_types import AgentType
from strata.shared.tool_catalogue import (
    CATALOGUE,
    EXIT_TOOLS,
    FILE_TOOLS,
    GROUP_TOOLS,
    HISTORY_TOOLS,
    default_tools,
)
from strata.shared.tool_rules import ToolRuleType
from strata.tool_execution.builtin.agents import AgentTools
from strata.tool_execution.builtin.code import CodeTools
from strata.tool_execution.builtin.definitions import BUILTIN_TOOLS, check_executors
from strata.tool_execution.builtin.files import FileTools
from strata.tool_execution.builtin.functions import FunctionTools
from strata.tool_execution.builtin.memory import MemoryTools
from strata.tool_execution.builtin.retrieval import ArchivalTools, ConversationSearch
from strata.tool_execution.builtin.summaries import ExpandSummary
from strata.tool_execution.builtin.voice_memory import StoreMemories
from strata.tool_execution.builtin.voice_search import SearchMemory
from strata.tool_execution.builtin.web import WebTools

NOT_BUILT = {"conversation_search_date"}
EXECUTORS: tuple[Any, ...] = (
    AgentTools,
    ArchivalTools,
    CodeTools,
    ConversationSearch,
    ExpandSummary,
    FileTools,
    MemoryTools,
    SearchMemory,
    FunctionTools,
    StoreMemories,
    WebTools,
)


def test_every_entry_is_either_defined_or_listed_as_not_built() -> None:
    assert {name for name, entry in CATALOGUE.items() if not entry.built} == NOT_BUILT
    assert set(BUILTIN_TOOLS) == set(CATALOGUE) - NOT_BUILT


@pytest.mark.parametrize("name", sorted(BUILTIN_TOOLS))
def test_a_definition_has_the_effect_of_the_catalogue(name: str) -> None:
    tool, entry = BUILTIN_TOOLS[name], CATALOGUE[name]
    assert (tool.name, tool.effect, tool.parallel) == (name, entry.effect, entry.parallel)


def test_every_tool_has_one_executor() -> None:
    check_executors(EXECUTORS)
    assert sum(len(executor.names) for executor in EXECUTORS) == len(BUILTIN_TOOLS)


@pytest.mark.parametrize("missing", EXECUTORS)
def test_a_tool_without_an_executor_is_an_error(missing: Any) -> None:
    rest = [executor for executor in EXECUTORS if executor is not missing]
    with pytest.raises(ValueError, match="no executor") as raised:
        check_executors(rest)
    assert all(name in str(raised.value) for name in missing.names)


def test_an_executor_of_an_unknown_tool_is_an_error() -> None:
    class Unknown:
        names = frozenset({"unknown_tool"})

    with pytest.raises(ValueError, match="unknown_tool"):
        check_executors([*EXECUTORS, Unknown])


def test_default_rules_are_those_of_the_specification() -> None:
    ending = {name for name, e in CATALOGUE.items() if e.default_rule is ToolRuleType.EXIT_LOOP}
    going_on = {
        name for name, e in CATALOGUE.items() if e.default_rule is ToolRuleType.CONTINUE_LOOP
    }
    assert ending == {
        "send_message",
        "send_message_to_agent_async",
        "memory_finish_edits",
        "finish_rethinking_memory",
    }
    assert going_on == {
        "archival_memory_insert",
        "archival_memory_search",
        "conversation_search",
        "core_memory_append",
        "core_memory_replace",
        "expand_summary",
        "memory",
        "memory_apply_patch",
        "memory_insert",
        "memory_replace",
        "memory_rethink",
        "rethink_user_memory",
        "search_memory",
        "store_memories",
    }
    assert {"memory_finish_edits", "finish_rethinking_memory"} == EXIT_TOOLS - GROUP_TOOLS


def test_the_tools_that_show_stored_messages_are_listed() -> None:
    assert {
        "conversation_search",
        "conversation_search_date",
        "expand_summary",
        "search_memory",
    } == HISTORY_TOOLS


def test_file_tools_have_a_fixed_order() -> None:
    assert FILE_TOOLS == ("open_files", "grep_files", "semantic_search_files")


_ADDED = ("archival_memory_insert", "archival_memory_search", "expand_summary")
_MEMORY_AGENT = ("memory_insert", "memory_replace", "memory_rethink", "memory_finish_edits")
_VOICE_MEMORY = ("store_memories", "rethink_user_memory", "finish_rethinking_memory")
_CHAT_WITH_MEMORY_AGENT = ("send_message", "conversation_search", "archival_memory_search")


@pytest.mark.parametrize(
    ("agent_type", "alone", "with_sleeptime"),
    [
        (
            AgentType.LETTA_V1,
            ("conversation_search", "memory_insert", "memory_replace", *_ADDED),
            ("conversation_search", "archival_memory_search"),
        ),
        (
            AgentType.MEMGPT_V2,
            ("send_message", "conversation_search", "memory_insert", "memory_replace", *_ADDED),
            _CHAT_WITH_MEMORY_AGENT,
        ),
        (
            AgentType.MEMGPT,
            (
                "send_message",
                "conversation_search",
                "core_memory_append",
                "core_memory_replace",
                "memory",
                "memory_apply_patch",
                *_ADDED,
            ),
            _CHAT_WITH_MEMORY_AGENT,
        ),
        (AgentType.SLEEPTIME, _MEMORY_AGENT, _MEMORY_AGENT),
        (AgentType.REACT, (), ()),
        (AgentType.WORKFLOW, (), ()),
        (
            AgentType.VOICE_CONVO,
            ("send_message", "search_memory"),
            ("send_message", "search_memory"),
        ),
        (AgentType.VOICE_SLEEPTIME, _VOICE_MEMORY, _VOICE_MEMORY),
    ],
)
def test_each_type_has_its_default_tools(
    agent_type: AgentType, alone: tuple[str, ...], with_sleeptime: tuple[str, ...]
) -> None:
    assert default_tools(agent_type) == alone
    assert default_tools(agent_type, sleeptime=True) == with_sleeptime
