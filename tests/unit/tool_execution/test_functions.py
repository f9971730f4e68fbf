"""Built-in tools that are plain functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from strata.shared.agent_types import AgentType
from strata.shared.clock import ManualClock
from strata.shared.tool_catalogue import default_tools
from strata.tool_execution.builtin.functions import FunctionTools
from strata.tool_execution.domain.tools import CallingAgent, ToolCall, ToolError

CLOCK = ManualClock(datetime(2026, 7, 1, 22, 30, 5, tzinfo=UTC))
CALLER = CallingAgent("agent-1", "conversation-1", "run-1", "step-1", "test/x", "America/New_York")


async def current_time(**arguments: Any) -> str:
    call = ToolCall("call-1", "current_time", "{}", "run-1/step-1/call-1")
    return str((await FunctionTools(CLOCK).run(call, arguments, CALLER)).value)


async def test_current_time_is_in_the_named_timezone() -> None:
    text = await current_time(timezone="Asia/Tokyo")
    assert text == "Thursday, 2026-07-02 07:30:05 AM JST+0900 (Asia/Tokyo)"


async def test_current_time_is_in_the_timezone_of_the_agent_by_default() -> None:
    assert await current_time() == "Wednesday, 2026-07-01 06:30:05 PM EDT-0400 (America/New_York)"


@pytest.mark.parametrize("name", ["", "Europe", "Mars/Base", "../etc/passwd", "/UTC", "a\0b"])
async def test_unknown_timezone_is_an_error_with_an_example(name: str) -> None:
    with pytest.raises(ToolError, match=r'There is no timezone .* such as "Europe/Berlin"'):
        await current_time(timezone=name)


@pytest.mark.parametrize("agent_type", AgentType)
def test_current_time_is_not_a_default_tool(agent_type: AgentType) -> None:
    for sleeptime in (False, True):
        assert "current_time" not in default_tools(agent_type, sleeptime=sleeptime)
