"""Tool rules: when an agent's tools may or must be called (decision 0074)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.shared.tool_catalogue import CATALOGUE, EXIT_TOOLS
from strata.shared.tool_rules import ToolRuleType, rule_sentence


@dataclass(frozen=True, slots=True)
class ToolRule:
    """One rule, with the fields of the proto.

    Attributes:
        type: The type of rule.
        tool_name: The tool that the rule applies to.
        children: Tools that come after it (``constrain_child_tools``, ``parent_last_tool``).
        child_output_mapping: Next tool by output (``conditional``).
        default_child: Next tool for other outputs (``conditional``); empty for any.
        require_output_mapping: No tool may follow another output (``conditional``).
        max_count: Calls that a run may make (``max_count_per_step``).
        prefilled: Arguments that override the model's, JSON objects as text, by tool name
            (``run_first``, ``constrain_child_tools``).
        timeout_s: Seconds until an approval request gets the default decision
            (``requires_approval``); 0 for the default.
        when_tainted: Applies only if the context holds untrusted content (``requires_approval``).
        default_approve: The default decision is to approve (``requires_approval``).
    """

    type: ToolRuleType
    tool_name: str
    children: tuple[str, ...] = ()
    child_output_mapping: Mapping[str, str] = field(default_factory=dict)
    default_child: str = ""
    require_output_mapping: bool = False
    max_count: int = 0
    prefilled: Mapping[str, str] = field(default_factory=dict)
    timeout_s: int = 0
    when_tainted: bool = False
    default_approve: bool = False

    @property
    def sentence(self) -> str | None:
        """The sentence about the rule in the prompt; None if it has none."""
        return rule_sentence(self.type, self.tool_name, self.children, self.max_count)


_ENDS = frozenset({ToolRuleType.EXIT_LOOP, ToolRuleType.CONTINUE_LOOP})


def base_rules(tools: Sequence[str], own: Sequence[ToolRule]) -> tuple[ToolRule, ...]:
    """Returns the rules that `include_base_tool_rules` adds (decision 0099).

    A tool for which the agent has its own ``exit_loop`` or ``continue_loop`` rule gets none.

    Args:
        tools: Names of the agent's tools.
        own: The agent's own rules.
    """
    ruled = _tools_with_end_rules(own)
    entries = (CATALOGUE[name] for name in tools if name in CATALOGUE and name not in ruled)
    return tuple(
        ToolRule(entry.default_rule, entry.name)
        for entry in entries
        if entry.default_rule is not None
    )


def rules_in_force(tools: Collection[str], own: Sequence[ToolRule]) -> tuple[ToolRule, ...]:
    """Returns an agent's rules with the default ``exit_loop`` rules of `EXIT_TOOLS`."""
    ruled = _tools_with_end_rules(own)
    default = (
        ToolRule(ToolRuleType.EXIT_LOOP, name)
        for name in tools
        if name in EXIT_TOOLS and name not in ruled
    )
    return (*own, *default)


def rule_to_json(rule: ToolRule) -> dict[str, Any]:
    """Returns the stored form of a rule, without unset fields."""
    settings = {
        "children": list(rule.children),
        "child_output_mapping": dict(rule.child_output_mapping),
        "default_child": rule.default_child,
        "require_output_mapping": rule.require_output_mapping,
        "max_count": rule.max_count,
        "prefilled": dict(rule.prefilled),
        "timeout_s": rule.timeout_s,
        "when_tainted": rule.when_tainted,
        "default_approve": rule.default_approve,
    }
    nonempty = {name: value for name, value in settings.items() if value}
    return {"type": rule.type.value, "tool_name": rule.tool_name, **nonempty}


def rule_from_json(value: Mapping[str, Any]) -> ToolRule:
    """Returns the rule of a stored form."""
    fields = dict(value)
    fields["type"] = ToolRuleType(fields["type"])
    fields["children"] = tuple(fields.get("children", ()))
    return ToolRule(**fields)


def _tools_with_end_rules(rules: Sequence[ToolRule]) -> set[str]:
    return {rule.tool_name for rule in rules if rule.type in _ENDS}
