"""Records of the journal and results of tool calls."""

from __future__ import annotations

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.conversation.messages import ToolReturn
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ImageDetail,
    ImagePart,
    ModelReply,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.run.journal import StepRecord
from strata.agent_loop.domain.tools import PromptSnapshot, ToolResult
from strata.shared.ids import new_id
from strata.shared.memory_edits import MemoryEdit
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.tool_rules import ToolRuleType
from strata.shared.usage import Usage


def record(*ids: str, step: int = 1) -> StepRecord:
    reply = ModelReply(
        (ReasoningPart("Hm.\0", "sig\0", "red"), TextPart('Ünïcödé "\\" 🙂')),
        tuple(ToolCall(call_id, "memory_insert", '{"a": ') for call_id in ids),
        FinishReason.TOOL_CALLS,
        Usage(10, 5, 3, 2, 1, estimated=True),
        "test-model",
    )
    effects = dict.fromkeys(ids, ToolEffect.IDEMPOTENT)
    snapshot = PromptSnapshot({"human": 2}, max_files_open=3)
    rules = (ToolRule(ToolRuleType.CONSTRAIN_CHILD_TOOLS, "a", ("b",)),)
    return StepRecord(
        step,
        new_id("step"),
        new_id("message"),
        "test/test-model",
        reply,
        effects,
        {},
        snapshot,
        rules,
    )


def result(call_id: str, status: ToolStatus = ToolStatus.OK) -> ToolResult:
    image = ImagePart("image/png", "id", 2, 1, 3, "A dot.", ImageDetail.LOW, data=b"\0\xff\1")
    tool_return = ToolReturn(
        call_id,
        "memory_insert",
        status,
        '{"status"}',
        ("out\0",),
        ("err",),
        Provenance.MEMORY,
        images=(image,),
    )
    edit = MemoryEdit("block-1", "human", 3, "@@", "append")
    return ToolResult(tool_return, 12, (edit,), archival_changed=True, files_changed=True)
