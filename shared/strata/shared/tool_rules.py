"""Types of tool rules and their sentences for the model (docs/wire-format.md#tool-usage-rules).

Core memory shows the descriptions in the prompt; the agent loop shows them when it refuses a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class ToolRuleType(StrEnum):
    """The type of a rule, by its name as text."""

    RUN_FIRST = "run_first"
    EXIT_LOOP = "exit_loop"
    CONTINUE_LOOP = "continue_loop"
    CONDITIONAL = "conditional"
    CONSTRAIN_CHILD_TOOLS = "constrain_child_tools"
    MAX_COUNT_PER_STEP = "max_count_per_step"
    PARENT_LAST_TOOL = "parent_last_tool"
    REQUIRED_BEFORE_EXIT = "required_before_exit"
    REQUIRES_APPROVAL = "requires_approval"


def rule_sentence(
    kind: ToolRuleType, tool_name: str, children: Sequence[str] = (), max_count: int = 0
) -> str | None:
    """Returns the description of a rule for the model; None for a rule without one.

    ``run_first`` and ``requires_approval`` have none: the loop enforces the first by the tools that
    it offers, and the second does not change which tools the model may call.
    """
    names = ", ".join(children)
    match kind:
        case ToolRuleType.CONTINUE_LOOP:
            return f"{tool_name} requires continuing your response when called"
        case ToolRuleType.EXIT_LOOP:
            return f"{tool_name} ends your response (yields control) when called"
        case ToolRuleType.CONSTRAIN_CHILD_TOOLS:
            return f"After using {tool_name}, you must use one of these tools: {names}"
        case ToolRuleType.PARENT_LAST_TOOL:
            return f"{names} can only be used after {tool_name}"
        case ToolRuleType.CONDITIONAL:
            return f"{tool_name} will determine which tool to use next based on its output"
        case ToolRuleType.MAX_COUNT_PER_STEP:
            return f"{tool_name}: at most {max_count} use(s) per response"
        case ToolRuleType.REQUIRED_BEFORE_EXIT:
            return f"{tool_name} must be used at least once before your response ends"
        case ToolRuleType.RUN_FIRST | ToolRuleType.REQUIRES_APPROVAL:
            return None


def rule_element(sentence: str) -> str:
    """Returns the prompt element that contains a rule's sentence."""
    return f"<tool_rule>\n{sentence}\n</tool_rule>"
