"""The step under way, as it is written down before its tools run.

A reply that is journalled is never asked for again, and a call whose result is in the ledger is
never run again (docs/architecture.md#durability). The codecs here give the stored form.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from strata.agent_loop.domain.messages import NestedCall, Provenance, ToolReturn, ToolStatus
from strata.agent_loop.domain.runs import RunRequest
from strata.agent_loop.domain.tool_rules import ToolRule, rule_from_json, rule_to_json
from strata.agent_loop.domain.tools import MemoryEdit, PromptSnapshot, ToolResult
from strata.agent_loop.models.domain import (
    FinishReason,
    ImageDetail,
    ImagePart,
    ModelReply,
    ReasoningPart,
    TextPart,
    ToolCall,
    Usage,
)
from strata.shared.tool_catalogue import ToolEffect


class CallState(StrEnum):
    """Where a call is. PENDING means that it may have been started."""

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
    """Returns the state of a call that ended with `result`."""
    return _STATES[result.tool_return.status]


@dataclass(frozen=True, slots=True)
class JournalKey:
    """Whose journal: one run in one conversation, by one dispatch of it."""

    conversation_id: str
    agent_id: str
    run_id: str
    attempt: int


def key_of(request: RunRequest) -> JournalKey:
    """Returns whose steps the steps of a dispatch are."""
    return JournalKey(request.conversation_id, request.agent_id, request.run_id, request.attempt)


@dataclass(frozen=True, slots=True)
class NestedRecord:
    """A call of code in the ledger.

    Attributes:
        parent_id: The call whose code it is.
        call: The call as it was run.
        result: How it ended; None if that is not known.
    """

    parent_id: str
    call: ToolCall
    result: ToolResult | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A reply with tool calls, and what is known of its calls.

    Attributes:
        step: Number of the step in the run, from 1.
        step_id: Id of the step.
        message_id: Id that the assistant message will be stored with.
        model: Handle of the model that replied.
        reply: The reply.
        effects: What each call's tool does, by call id.
        results: Results in the ledger, by call id.
        snapshot: What the reply was made from; its calls are sent with it however often they are.
        rules: The rules by which its calls are judged; None if a release wrote it down that had
            no rules but the default ones.
        nested: Calls of code in the ledger, in order.
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
    """Returns the stored form of a reply, with what it was made from and is judged by."""
    return {
        "content": [_part_to_json(part) for part in reply.content],
        "tool_calls": [asdict(call) for call in reply.tool_calls],
        "finish_reason": reply.finish_reason.value,
        "usage": asdict(reply.usage),
        "model": reply.model,
        "seen": asdict(snapshot),
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
    """Returns what a reply was made from; nothing of it is known of replies of old releases."""
    if "seen" not in value:
        return PromptSnapshot()
    seen = dict(value["seen"])
    # A release that wrote none down let no call depend on it.
    seen["taint"] = tuple(Provenance(label) for label in seen.get("taint", ()))
    return PromptSnapshot(**seen)


def rules_from_json(value: Mapping[str, Any]) -> tuple[ToolRule, ...] | None:
    """Returns the rules by which a reply is judged; None for replies of old releases."""
    rules = value.get("rules")
    return None if rules is None else tuple(rule_from_json(rule) for rule in rules)


def result_to_json(result: ToolResult) -> dict[str, Any]:
    """Returns the stored form of a result."""
    stored = asdict(result)
    for image in stored["tool_return"]["images"]:
        image["data"] = base64.b64encode(image["data"]).decode("ascii")
    return stored


def result_from_json(value: Mapping[str, Any]) -> ToolResult:
    """Returns the result of a stored form."""
    stored = value["tool_return"]
    return ToolResult(
        tool_return=ToolReturn(
            tool_call_id=stored["tool_call_id"],
            name=stored["name"],
            status=ToolStatus(stored["status"]),
            content=stored["content"],
            stdout=tuple(stored["stdout"]),
            stderr=tuple(stored["stderr"]),
            provenance=Provenance(stored["provenance"]) if stored["provenance"] else None,
            taint=tuple(Provenance(label) for label in stored.get("taint", ())),
            nested=tuple(
                NestedCall(**{**call, "status": ToolStatus(call["status"])})
                for call in stored.get("nested", ())
            ),
            returned_by=stored.get("returned_by", ""),
            images=tuple(
                ImagePart(
                    **{
                        **image,
                        "detail": ImageDetail(image["detail"]),
                        "data": base64.b64decode(image["data"]),
                    }
                )
                for image in stored.get("images", ())
            ),
        ),
        duration_ms=value["duration_ms"],
        memory_edits=tuple(MemoryEdit(**edit) for edit in value["memory_edits"]),
        archival_changed=value["archival_changed"],
        files_changed=value.get("files_changed", False),
    )


_LONGEST_ID_IN_KEY = 64


def idempotency_key(run_id: str, step: int, tool_call_id: str) -> str:
    """Returns the name of a call for ever: the same on every attempt.

    Providers choose ids of any length and alphabet; a key is short, since services limit theirs.
    """
    if len(tool_call_id) > _LONGEST_ID_IN_KEY or not tool_call_id.isprintable():
        tool_call_id = hashlib.sha256(tool_call_id.encode("utf-8", "replace")).hexdigest()
    return f"{run_id}/{step}/{tool_call_id}"


def _part_to_json(part: TextPart | ReasoningPart) -> dict[str, Any]:
    if isinstance(part, ReasoningPart):
        return {
            "reasoning": part.text,
            "signature": part.signature,
            "redacted": part.redacted,
        }
    return {"text": part.text}


def _part_from_json(value: Mapping[str, Any]) -> TextPart | ReasoningPart:
    if "reasoning" in value:
        return ReasoningPart(value["reasoning"], value["signature"], value["redacted"])
    return TextPart(value["text"])
