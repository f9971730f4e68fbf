"""The tool rules of an agent as its prompt shows them.

The order of the groups is fixed (docs/wire-format.md#tool-usage-rules).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strata.shared.tool_rules import ToolRuleType, rule_sentence

__all__ = ["INTRODUCTION", "ToolRule", "ToolRuleType", "rule_texts"]


@dataclass(frozen=True, slots=True)
class ToolRule:
    """The parts of a tool rule that the prompt shows."""

    type: ToolRuleType
    tool_name: str
    children: tuple[str, ...] = ()
    max_count: int = 0


INTRODUCTION = (
    "These rules say when each tool may or must be called. Keep to them: a call that breaks a "
    "rule is refused. One response may hold several tool calls."
)

# Rules of the types in one group keep the order in which they were given.
_ORDER: tuple[frozenset[ToolRuleType], ...] = (
    frozenset({ToolRuleType.CONTINUE_LOOP}),
    frozenset(
        {
            ToolRuleType.CONSTRAIN_CHILD_TOOLS,
            ToolRuleType.CONDITIONAL,
            ToolRuleType.MAX_COUNT_PER_STEP,
        }
    ),
    frozenset({ToolRuleType.PARENT_LAST_TOOL}),
    frozenset({ToolRuleType.EXIT_LOOP}),
    frozenset({ToolRuleType.REQUIRED_BEFORE_EXIT}),
)


def rule_texts(rules: Sequence[ToolRule]) -> list[str]:
    """Returns the sentence of every rule that has one, in the order of rendering."""
    ordered = (rule for group in _ORDER for rule in rules if rule.type in group)
    sentences = (rule_sentence(r.type, r.tool_name, r.children, r.max_count) for r in ordered)
    return [text for text in sentences if text is not None]
