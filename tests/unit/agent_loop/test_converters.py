"""Conversions between protos and domain types."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.agent_loop.convert.checks import range_violations
from strata.agent_loop.convert.messages import message_from_proto, message_to_proto
from strata.agent_loop.convert.runs import event_to_proto, response_to_proto, run_from_proto
from strata.agent_loop.convert.tool_rules import rules_from_proto, rules_to_proto
from strata.agent_loop.convert.tools import toolset_from_proto
from strata.agent_loop.domain.agent.tool_rules import ToolRule, rule_from_json, rule_to_json
from strata.agent_loop.domain.conversation.approvals import ApprovalRequest
from strata.agent_loop.domain.conversation.messages import (
    Message,
    NestedCall,
    SummaryPart,
    ToolReturn,
)
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ImageDetail,
    ImagePart,
    ModelReply,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.run.events import (
    ModelRequestSent,
    ReplyReceived,
    RunFinished,
    WindowCompacted,
)
from strata.agent_loop.domain.run.journal import (
    reply_from_json,
    reply_to_json,
    result_from_json,
    result_to_json,
    rules_from_json,
    snapshot_from_json,
)
from strata.agent_loop.domain.run.runs import RunFailure, RunOutcome
from strata.agent_loop.domain.tools import PromptSnapshot, ToolResult
from strata.api.agent_loop.v1 import turn_service_pb2 as turn_pb
from strata.api.common.v1 import message_pb2, run_event_pb2, tool_pb2
from strata.api.tool_execution.v1 import execution_service_pb2, tool_service_pb2
from strata.protocol.errors import InvalidArgumentError, Reason
from strata.shared.ids import new_id
from strata.shared.memory_edits import MemoryEdit
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.tool_rules import ToolRuleType
from strata.shared.usage import Usage

text = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, 2**31 - 1)
provenance = st.sampled_from(list(Provenance))
usages = st.builds(Usage, numbers, numbers, numbers, numbers, numbers, st.booleans())
images = st.one_of(
    st.builds(ImagePart, text, url=text.filter(bool)),
    st.builds(
        ImagePart,
        text,
        image_id=text.filter(bool),
        width=st.integers(0, 8000),
        height=st.integers(0, 8000),
        size_bytes=st.integers(0, 4_000_000),
        alt_text=text,
        detail=st.sampled_from(ImageDetail),
        url=text,
        data=st.binary(max_size=5),
    ),
)
returns = st.builds(
    ToolReturn,
    text,
    text,
    st.sampled_from(list(ToolStatus)),
    text,
    st.lists(text, max_size=2).map(tuple),
    st.lists(text, max_size=2).map(tuple),
    st.none() | provenance,
    st.lists(provenance, max_size=2).map(tuple),
    st.lists(
        st.builds(NestedCall, text, text, text, st.sampled_from(list(ToolStatus)), st.booleans()),
        max_size=2,
    ).map(tuple),
    returned_by=text,
    images=st.lists(images, max_size=2).map(tuple),
)
sources = st.builds(TaintSource, provenance, text, text, text, text)
requests = st.builds(
    ApprovalRequest, text, taint=st.lists(sources, max_size=3).map(tuple), tool_calls=st.just(())
)
rules = st.builds(
    ToolRule,
    st.sampled_from(list(ToolRuleType)),
    text,
    st.lists(text, max_size=3).map(tuple),
    st.dictionaries(text, text, max_size=3),
    text,
    st.booleans(),
    st.integers(0, 2**31 - 1),
    st.dictionaries(text, text, max_size=3),
    when_tainted=st.booleans(),
)
parts = st.one_of(
    st.builds(TextPart, text),
    st.builds(ReasoningPart, text, text, text),
    st.builds(ToolCall, text, text, text),
    returns,
    images,
    requests,
    st.builds(SummaryPart, text, numbers, numbers, numbers, text, text),
)
messages = st.builds(
    Message,
    id=text,
    role=st.sampled_from(list(MessageRole)),
    parts=st.lists(parts, max_size=4).map(tuple),
    conversation_id=text,
    agent_id=text,
    sequence=numbers,
    name=text,
    run_id=text,
    step_id=text,
    group_id=text,
    model=text,
    usage=st.none() | usages,
    provenance=st.lists(provenance, max_size=3).map(tuple),
    pinned=st.booleans(),
    client_message_id=text,
    create_time=st.none() | numbers.map(lambda seconds: datetime.fromtimestamp(seconds, tz=UTC)),
)
results = st.builds(
    ToolResult,
    returns,
    numbers,
    st.lists(st.builds(MemoryEdit, text, text, numbers, text), max_size=2).map(tuple),
    st.booleans(),
)
replies = st.builds(
    ModelReply,
    st.lists(st.builds(TextPart, text) | st.builds(ReasoningPart, text, text, text)).map(tuple),
    st.lists(st.builds(ToolCall, text, text, text)).map(tuple),
    st.sampled_from(list(FinishReason)),
    usages,
    text,
)


@settings(deadline=None)
@given(messages)
def test_messages_are_unchanged_after_conversion_to_proto(message: Message) -> None:
    wire = message_pb2.Message.FromString(message_to_proto(message).SerializeToString())
    assert message_from_proto(wire) == message


@settings(deadline=None)
@given(
    replies,
    st.builds(
        PromptSnapshot,
        st.dictionaries(text, st.integers(1)),
        st.integers(0),
        st.lists(provenance, max_size=2).map(tuple),
    ),
    st.none() | st.lists(rules, max_size=3).map(tuple),
)
def test_replies_are_unchanged_after_storing_in_the_journal(
    reply: ModelReply, snapshot: PromptSnapshot, judged_by: tuple[ToolRule, ...] | None
) -> None:
    stored = json.loads(json.dumps(reply_to_json(reply, snapshot, judged_by)))
    assert reply_from_json(stored) == reply
    assert snapshot_from_json(stored) == snapshot
    assert rules_from_json(stored) == judged_by


@settings(max_examples=50)
@given(st.lists(rules, max_size=3).map(tuple))
def test_rules_are_unchanged_after_conversion_to_proto_and_row(
    given_rules: tuple[ToolRule, ...],
) -> None:
    wire = [
        tool_pb2.ToolRule.FromString(r.SerializeToString()) for r in rules_to_proto(given_rules)
    ]
    assert rules_from_proto(wire) == given_rules
    stored = json.loads(json.dumps([rule_to_json(rule) for rule in given_rules]))
    assert tuple(rule_from_json(rule) for rule in stored) == given_rules


def test_replies_and_results_of_the_previous_release_can_be_read() -> None:
    stored = reply_to_json(
        ModelReply((), (), FinishReason.STOP, Usage()), PromptSnapshot({"human": 3}, 5)
    )
    del stored["seen"], stored["rules"]
    assert snapshot_from_json(stored) == PromptSnapshot()
    assert rules_from_json(stored) is None
    result = ToolResult(
        ToolReturn("c", "n", ToolStatus.OK, "x"), 1, (MemoryEdit("b", "l", 2, "+x"),)
    )
    old = result_to_json(result)
    del old["files_changed"]
    del old["tool_return"]["nested"], old["tool_return"]["returned_by"]
    for edit in old["memory_edits"]:
        del edit["operation"]
    assert result_from_json(old) == result


@settings(deadline=None)
@given(results)
def test_results_are_unchanged_after_storing_in_the_journal(result: ToolResult) -> None:
    assert result_from_json(json.loads(json.dumps(result_to_json(result)))) == result


def test_approval_requests_and_answers_are_unchanged_after_conversion() -> None:
    call = message_pb2.ToolCallPart(tool_call_id="c", name="n", arguments="{}")
    asks = message_pb2.ApprovalRequestPart(
        approval_id="approval-1",
        tool_calls=[call],
        waiting_calls=[call],
        bindings=[
            message_pb2.ApprovalBinding(tool_call_id="c", tool_version="v", arguments_hash="h")
        ],
    )
    asks.expire_time.FromJsonString("2026-01-01T00:00:00.123456Z")
    decisions = [
        message_pb2.ApprovalDecision(tool_call_id="a", approve=True, arguments_hash="h"),
        message_pb2.ApprovalDecision(tool_call_id="b", reason="r", client_return=""),
        message_pb2.ApprovalDecision(
            tool_call_id="c", client_return="x", client_status=message_pb2.TOOL_STATUS_FAILED
        ),
    ]
    answers = message_pb2.ApprovalResponsePart(
        approval_id="approval-1", decisions=decisions, answered_by="key-1"
    )
    parts = [
        message_pb2.Part(approval_request=asks),
        message_pb2.Part(approval_response=answers),
    ]
    wire = message_pb2.Message(id="m", role=message_pb2.ROLE_APPROVAL, parts=parts)
    assert message_to_proto(message_from_proto(wire)) == wire


def test_unknown_parts_of_later_releases_are_kept() -> None:
    # A part of an unknown kind is an empty oneof.
    wire = message_pb2.Message(
        id="m",
        role=message_pb2.ROLE_USER,
        parts=[message_pb2.Part.FromString(b"\xfa\x01\x02hi")],
    )
    assert message_to_proto(message_from_proto(wire)) == wire


def test_version_and_approval_flag_of_a_tool_are_converted() -> None:
    wire = tool_service_pb2.Tool(name="pay", version="v1", default_requires_approval=True)
    [tool] = toolset_from_proto(execution_service_pb2.ResolveToolsResponse(tools=[wire])).tools
    assert (tool.version, tool.requires_approval) == ("v1", True)


@pytest.mark.parametrize("reason", list(StopReason))
def test_every_stop_reason_has_its_number_on_the_wire(reason: StopReason) -> None:
    failure = RunFailure(Reason.INTERNAL, "m", retryable=True)
    event = RunFinished(RunOutcome(reason, Usage(1, 2), 3, failure))
    wire = event_to_proto(event, "run-1", datetime(2026, 1, 1, tzinfo=UTC)).run_finished
    assert run_event_pb2.StopReason.Name(wire.stop_reason) == f"STOP_REASON_{reason.name}"
    assert wire.usage.total_tokens == 3
    assert (wire.error.reason, wire.error.retryable) == ("INTERNAL", True)


def run_request(**fields: object) -> turn_pb.ExecuteRunRequest:
    given_fields: dict[str, object] = {
        "run_id": new_id("run"),
        "attempt": 1,
        "agent_id": new_id("agent"),
        "conversation_id": new_id("conversation"),
    }
    return turn_pb.ExecuteRunRequest(**{**given_fields, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"run_id": "agent-1"}, "run_id"),
        ({"attempt": 0}, "attempt"),
        ({"max_steps": -1}, "max_steps"),
        (
            {
                "approval": {"approval_id": "a"},
                "messages": [{"parts": [{"text": {"text": "a"}}]}],
            },
            "approval",
        ),
        ({"messages": [{"parts": []}]}, "messages[0].parts"),
        ({"messages": [{"parts": [{"text": {"text": " \u200b"}}]}]}, "messages[0].parts"),
        ({"messages": [{"parts": [{"text": {"text": "a\0"}}]}]}, "messages[0].parts[0].text.text"),
        (
            {"messages": [{"parts": [{"image": {"data": b"GIF"}}]}]},
            "messages[0].parts[0].image.data",
        ),
        ({"messages": [{"parts": [{"tool_call": {}}]}]}, "messages[0].parts[0]"),
        (
            {"messages": [{"role": 4, "parts": [{"text": {"text": "a"}}]}]},
            "messages[0].role",
        ),
    ],
)
def test_wrong_dispatches_are_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        run_from_proto(run_request(**fields))
    assert [violation.field for violation in raised.value.violations] == [field]


def test_a_dispatch_has_defaults() -> None:
    run = run_from_proto(run_request())
    assert (run.max_steps, run.remaining_s, run.stream_tokens) == (50, None, False)
    assert list(run.inputs) == []


def test_tools_have_their_replay_effect() -> None:
    def tool(name: str, kind: int, effect: int = 0) -> tool_service_pb2.Tool:
        return tool_service_pb2.Tool(
            name=name,
            type=kind,  # type: ignore[arg-type]
            effect=effect,  # type: ignore[arg-type]
            parameters_json='{"type": "object", "properties": {}}',
        )

    toolset = toolset_from_proto(
        execution_service_pb2.ResolveToolsResponse(
            tools=[
                tool("memory_insert", tool_pb2.TOOL_TYPE_MEMORY),
                tool("custom", tool_pb2.TOOL_TYPE_CUSTOM),
                tool("reader", tool_pb2.TOOL_TYPE_CUSTOM, tool_pb2.TOOL_EFFECT_READ_ONLY),
                tool("sender", tool_pb2.TOOL_TYPE_MCP, tool_pb2.TOOL_EFFECT_SIDE_EFFECT),
                # A tool of a project, made before the built-in tool of that name.
                tool("memory_rethink", tool_pb2.TOOL_TYPE_CUSTOM),
                # From a newer tool service.
                tool("memory_of_later", tool_pb2.TOOL_TYPE_MEMORY),
            ]
        )
    )
    repeatable = {tool.name: tool.replay_effect.repeatable for tool in toolset.tools}
    assert repeatable == {
        "memory_insert": True,
        "custom": False,
        "reader": True,
        "sender": False,
        "memory_rethink": False,
        "memory_of_later": False,
    }
    assert toolset.find("sender") == replace(toolset.tools[3], effect=ToolEffect.SIDE_EFFECT)
    assert toolset.find("nobody") is None


def test_model_calls_are_sent_to_the_gateway() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    sent = response_to_proto(ModelRequestSent("message-1", 70, 3.5), "run-1", now)
    assert sent == turn_pb.ExecuteRunResponse(
        request=turn_pb.ModelRequestSent(
            message_id="message-1", prompt_tokens=70, bytes_per_token=3.5
        )
    )
    usage = Usage(7, 2, estimated=True)
    ended = response_to_proto(ReplyReceived("message-1", usage), "run-1", now).reply
    assert ended.message_id == "message-1"
    assert (ended.usage.prompt_tokens, ended.usage.total_tokens) == (7, 9)
    assert ended.usage.estimated


def test_compaction_event_has_summary_and_tokens() -> None:
    summary = Message("message-1", MessageRole.SUMMARY, (SummaryPart("Before."),))
    wire = event_to_proto(
        WindowCompacted(summary, 900, 400), "run-1", datetime(2026, 1, 1, tzinfo=UTC)
    ).window_compacted
    assert message_from_proto(wire.summary) == summary
    assert (wire.tokens_before, wire.tokens_after) == (900, 400)


def test_the_limits_of_a_range_are_plain_numbers() -> None:
    [violation] = range_violations("model.context_window", -1, 4096, 10_000_000)
    assert violation.description == "must be between 4096 and 10000000"
