"""Tool rules of the API."""

from __future__ import annotations

from typing import Any

from strata.api.common.v1 import tool_pb2


def rule(kind: str, name: str, **fields: Any) -> tool_pb2.ToolRule:
    """Returns a rule of a kind, such as ``run_first``, about a tool."""
    number = tool_pb2.ToolRuleType.Value(f"TOOL_RULE_TYPE_{kind.upper()}")
    return tool_pb2.ToolRule(type=number, tool_name=name, **fields)
