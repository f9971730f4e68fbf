"""Which calls a run has made, read from its messages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from strata.agent_loop.context.packaging import OUTCOME_UNKNOWN, own_result, package
from strata.agent_loop.domain.conversation.messages import Message, NestedCall, ToolReturn
from strata.agent_loop.domain.model.chat import TextPart, ToolCall
from strata.agent_loop.rules.history import Called, calls_of
from strata.agent_loop.rules.refusals import CONSTRAINT
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)


def message(*returns: ToolReturn) -> Message:
    return Message("message-1", MessageRole.TOOL, returns)


def tool_return(name: str, content: str, status: ToolStatus = ToolStatus.OK) -> ToolReturn:
    return ToolReturn(f"call_{name}", name, status, content, provenance=Provenance.MEMORY)


@pytest.mark.parametrize("value", ["plain", "", '{"status": "x", "message": "y"}', {"k": [1]}])
def test_the_output_of_a_packed_return_is_its_value(value: Any) -> None:
    packed = package(ToolStatus.OK, value, NOW, "UTC")
    assert calls_of([message(tool_return("a", packed))]) == [Called("a", value)]


def test_output_of_an_unpacked_return_is_its_content() -> None:
    returns = (
        tool_return("a", "raw"),
        tool_return("b", '{"x": 1}'),
        tool_return("c", "[" * 100_000),
    )
    outputs = [call.output for call in calls_of([message(*returns)])]
    assert outputs == ["raw", {"x": 1}, "[" * 100_000]


def test_calls_are_counted_once_and_refused_ones_never() -> None:
    call = ToolCall("call_r", "r", "{}")
    text = f"{CONSTRAINT} Cannot call r."
    refused = own_result(call, ToolStatus.FAILED, text, NOW, "UTC").tool_return
    lost = own_result(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN, NOW, "UTC").tool_return
    asked = Message("message-2", MessageRole.ASSISTANT, (call, TextPart("x")))
    failed = tool_return("b", package(ToolStatus.FAILED, "boom", NOW, "UTC"), ToolStatus.FAILED)
    # The text of a failed call of a web tool is from the system, too.
    web = own_result(replace(call, name="w"), ToolStatus.FAILED, "404.", NOW, "UTC").tool_return
    quoted = tool_return("q", package(ToolStatus.OK, text, NOW, "UTC"))
    returns = message(tool_return("a", "1"), refused, failed, web, quoted)
    messages = [asked, returns, asked, message(lost)]

    assert [made.name for made in calls_of(messages)] == ["a", "b", "w", "q", "r"]


def test_nested_calls_count_after_the_call_that_ran_the_code_unless_refused() -> None:
    nested = (
        NestedCall("call_code/1", "a", "{}", ToolStatus.OK),
        NestedCall("call_code/2", "b", "{}", ToolStatus.FAILED, refused=True),
        NestedCall("call_code/3", "c", "{}", ToolStatus.FAILED),
        NestedCall("call_code/4", "d", "{}", ToolStatus.UNKNOWN),
    )
    code = replace(tool_return("code", "{}"), nested=nested)
    names = [made.name for made in calls_of([message(code, tool_return("e", "1"))])]
    assert names == ["code", "a", "c", "d", "e"]
