"""Records of the step journal, which is written before a step's calls run, and their JSON form.

A journalled reply is never requested again, and a call with a journalled result never runs again
(docs/architecture.md#durability).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from strata.agent_loop.domain.agent.tool_rules import ToolRule, rule_from_json, rule_to_json
from strata.agent_loop.domain.conversation.messages import NestedCall, ToolReturn
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ImageDetail,
    ImagePart,
    ModelReply,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.run.runs import RunRequest
from strata.agent_loop.domain.tools import PromptSnapshot, ToolResult
from strata.shared.idempotency.keys import is_request_id
from strata.shared.memory_edits import MemoryEdit
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.record_fields import members_of
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.usage import Usage


class CallState(StrEnum):
    """The state of a call. PENDING means that it may have been started.

    A repeatable call stays PENDING if its step was committed at once; see `StepCalls.run`.
    """

    PENDING = "PENDING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


_STATES = {
    ToolStatus.OK: CallState.COMMITTED,
    ToolStatus.FAILED: CallState.FAILED,
    ToolStatus.UNKNOWN: CallState.UNKNOWN,
}


def state_of(result: ToolResult) -> CallState:
    """Returns the state of a call with this result."""
    return _STATES[result.tool_return.status]


@dataclass(frozen=True, slots=True)
class JournalKey:
    """Identifies the journal of a run and the dispatch that writes it."""

    conversation_id: str
    agent_id: str
    run_id: str
    attempt: int


def key_of(request: RunRequest) -> JournalKey:
    """Returns the journal key of a dispatch."""
    return JournalKey(request.conversation_id, request.agent_id, request.run_id, request.attempt)


@dataclass(frozen=True, slots=True)
class NestedRecord:
    """A journalled call that code made.

    Attributes:
        parent_id: The call whose code made it.
        call: The call as it was run.
        result: Its result; None if unknown.
    """

    parent_id: str
    call: ToolCall
    result: ToolResult | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A journalled reply with tool calls, and the known results of the calls.

    Attributes:
        step: Number of the step in the run, from 1.
        step_id: Id of the step.
        message_id: Id of the assistant message that will store the reply.
        model: Handle of the model that replied.
        reply: The reply.
        effects: Replay effect of each call's tool, by call id.
        results: Journalled results, by call id.
        snapshot: The prompt that the reply was made from; sent with its calls on every attempt.
        rules: The rules for its calls; None if written by a release that had only default rules.
        nested: Journalled calls of code, in order.
    """

    step: int
    step_id: str
    message_id: str
    model: str
    reply: ModelReply
    effects: Mapping[str, ToolEffect]
    results: Mapping[str, ToolResult]
    snapshot: PromptSnapshot = field(default_factory=PromptSnapshot)
    rules: tuple[ToolRule, ...] | None = None
    nested: tuple[NestedRecord, ...] = ()


def reply_to_json(
    reply: ModelReply, snapshot: PromptSnapshot, rules: Sequence[ToolRule] | None = None
) -> dict[str, Any]:
    """Returns the stored form of a reply with its prompt snapshot and rules."""
    return {
        "content": [_part_to_json(part) for part in reply.content],
        "tool_calls": [members_of(call) for call in reply.tool_calls],
        "finish_reason": reply.finish_reason.value,
        "usage": members_of(reply.usage),
        "model": reply.model,
        "seen": members_of(snapshot),
        "rules": None if rules is None else [rule_to_json(rule) for rule in rules],
    }


def reply_from_json(value: Mapping[str, Any]) -> ModelReply:
    """Returns the reply of a stored form."""
    return ModelReply(
        content=tuple(_part_from_json(part) for part in value["content"]),
        tool_calls=tuple(ToolCall(**call) for call in value["tool_calls"]),
        finish_reason=FinishReason(value["finish_reason"]),
        usage=Usage(**value["usage"]),
        model=value["model"],
    )


def snapshot_from_json(value: Mapping[str, Any]) -> PromptSnapshot:
    """Returns the prompt snapshot of a stored reply; empty for replies of old releases."""
    if "seen" not in value:
        return PromptSnapshot()
    seen = dict(value["seen"])
    # Releases that did not store the taint had no calls that depend on it.
    seen["taint"] = tuple(Provenance(label) for label in seen.get("taint", ()))
    return PromptSnapshot(**seen)


def rules_from_json(value: Mapping[str, Any]) -> tuple[ToolRule, ...] | None:
    """Returns the rules of a stored reply; None for replies of old releases."""
    rules = value.get("rules")
    return None if rules is None else tuple(rule_from_json(rule) for rule in rules)


def result_to_json(result: ToolResult) -> dict[str, Any]:
    """Returns the stored form of a result."""
    fields = asdict(result)
    for image in fields["tool_return"]["images"]:
        image["data"] = base64.b64encode(image["data"]).decode("ascii")
    return fields


def result_from_json(value: Mapping[str, Any]) -> ToolResult:
    """Returns the result of a stored form."""
    fields = value["tool_return"]
    return ToolResult(
        tool_return=ToolReturn(
            tool_call_id=fields["tool_call_id"],
            name=fields["name"],
            status=ToolStatus(fields["status"]),
            content=fields["content"],
            stdout=tuple(fields["stdout"]),
            stderr=tuple(fields["stderr"]),
            provenance=Provenance(fields["provenance"]) if fields["provenance"] else None,
            taint=tuple(Provenance(label) for label in fields.get("taint", ())),
            nested=tuple(
                NestedCall(**{**call, "status": ToolStatus(call["status"])})
                for call in fields.get("nested", ())
            ),
            returned_by=fields.get("returned_by", ""),
            images=tuple(
                ImagePart(
                    **{
                        **image,
                        "detail": ImageDetail(image["detail"]),
                        "data": base64.b64decode(image["data"]),
                    }
                )
                for image in fields.get("images", ())
            ),
        ),
        duration_ms=value["duration_ms"],
        memory_edits=tuple(MemoryEdit(**edit) for edit in value["memory_edits"]),
        archival_changed=value["archival_changed"],
        files_changed=value.get("files_changed", False),
    )


_LONGEST_ID_IN_KEY = 64


def idempotency_key(run_id: str, step: int, tool_call_id: str) -> str:
    """Returns the idempotency key of a call: the same on every attempt.

    Call ids of providers have any length and alphabet. Those that a request id cannot hold are
    hashed.
    """
    if len(tool_call_id) > _LONGEST_ID_IN_KEY or not is_request_id(tool_call_id):
        tool_call_id = hashlib.sha256(tool_call_id.encode("utf-8", "replace")).hexdigest()
    return f"{run_id}/{step}/{tool_call_id}"


def _part_to_json(part: TextPart | ReasoningPart) -> dict[str, Any]:
    if isinstance(part, ReasoningPart):
        return {
            "reasoning": part.text,
            "signature": part.signature,
            "redacted": part.redacted,
        }
    return {"text": part.text, **({"beside_call": True} if part.beside_call else {})}


def _part_from_json(value: Mapping[str, Any]) -> TextPart | ReasoningPart:
    if "reasoning" in value:
        return ReasoningPart(value["reasoning"], value["signature"], value["redacted"])
    return TextPart(value["text"], value.get("beside_call", False))
