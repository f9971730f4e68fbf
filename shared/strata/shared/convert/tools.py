"""Converts effects of tools and types of rules about them."""

from __future__ import annotations

from strata.api.common.v1 import tool_pb2
from strata.shared.convert.enums import EnumTable
from strata.shared.tool_catalogue import ToolEffect
from strata.shared.tool_rules import ToolRuleType

EFFECTS = EnumTable(tool_pb2.ToolEffect, ToolEffect, unspecified=ToolEffect.UNDECLARED)
RULE_TYPES = EnumTable(tool_pb2.ToolRuleType, ToolRuleType)
