"""A tool rule that requires approval for ``memory_insert``, and arguments of such a call."""

from __future__ import annotations

from strata.api.common.v1 import tool_pb2

GATE = tool_pb2.ToolRule(
    type=tool_pb2.TOOL_RULE_TYPE_REQUIRES_APPROVAL, tool_name="memory_insert", timeout_s=600
)
INSERT = {"label": "human", "new_str": "Likes rowing."}
