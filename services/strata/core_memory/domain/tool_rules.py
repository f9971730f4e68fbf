"""Tool rules as sentences for the model.

The texts and their order are those of observed §3. ``required_before_exit`` comes last
(the old server forgot it). ``run_first`` and ``requires_approval`` have no text: the
loop enforces the first by what it offers, and the second is not the model's concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class ToolRuleType(StrEnum):
    """Which rule, by its name in the specification (blueprint §14.1)."""

    RUN_FIRST = "run_first"
    EXIT_LOOP = "exit_loop"
    CONTINUE_LOOP = "continue_loop"
    CONDITIONAL = "conditional"
    CONSTRAIN_CHILD_TOOLS = "constrain_child_tools"
    MAX_COUNT_PER_STEP = "max_count_per_step"
    PARENT_LAST_TOOL = "parent_last_tool"
    REQUIRED_BEFORE_EXIT = "required_before_exit"
    REQUIRES_APPROVAL = "requires_approval"


@dataclass(frozen=True, slots=True)
class ToolRule:
    """One rule, as far as the model is told of it."""

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
    return [_text(rule) for group in _ORDER for rule in rules if rule.type in group]


def _text(rule: ToolRule) -> str:
    name, children = rule.tool_name, ", ".join(rule.children)
    match rule.type:
        case ToolRuleType.CONTINUE_LOOP:
            return f"{name} requires continuing your response when called"
        case ToolRuleType.EXIT_LOOP:
            return f"{name} ends your response (yields control) when called"
        case ToolRuleType.CONSTRAIN_CHILD_TOOLS:
            return f"After using {name}, you must use one of these tools: {children}"
        case ToolRuleType.PARENT_LAST_TOOL:
            return f"{children} can only be used after {name}"
        case ToolRuleType.CONDITIONAL:
            return f"{name} will determine which tool to use next based on its output"
        case ToolRuleType.MAX_COUNT_PER_STEP:
            return f"{name}: at most {rule.max_count} use(s) per response"
        case ToolRuleType.REQUIRED_BEFORE_EXIT:
            return f"{name} must be used at least once before your response ends"
        case _:
            raise ValueError(f"a {rule.type} rule has no text")
