"""Converts and validates tool rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.rules.validation import shape_violations
from strata.api.common.v1 import tool_pb2 as pb
from strata.protocol.errors import FieldViolation
from strata.shared.convert.tools import RULE_TYPES

_DECISIONS = frozenset(pb.DefaultDecision.values())


def rules_from_proto(rules: Iterable[pb.ToolRule]) -> tuple[ToolRule, ...]:
    """Returns the domain form of rules without `rule_violations`."""
    return tuple(_rule(wire) for wire in rules)


def rule_violations(field: str, rules: Sequence[pb.ToolRule]) -> list[FieldViolation]:
    """Returns violations in rules that do not depend on their agent's tools."""
    violations = []
    for index, wire in enumerate(rules):
        if wire.type not in RULE_TYPES.from_proto:
            violations.append(
                FieldViolation(f"{field}[{index}].type", "must be one of the known types")
            )
        if not wire.tool_name:
            violations.append(FieldViolation(f"{field}[{index}].tool_name", "must not be empty"))
        if wire.default_decision not in _DECISIONS:
            part = f"{field}[{index}].default_decision"
            violations.append(FieldViolation(part, "must be DENY or APPROVE"))
    return violations or shape_violations(field, [_rule(wire) for wire in rules])


def rules_to_proto(rules: Iterable[ToolRule]) -> list[pb.ToolRule]:
    """Returns rules as protos."""
    return [
        pb.ToolRule(
            type=RULE_TYPES.to_proto[rule.type],
            tool_name=rule.tool_name,
            children=rule.children,
            child_output_mapping=rule.child_output_mapping,
            default_child=rule.default_child,
            require_output_mapping=rule.require_output_mapping,
            max_count_limit=rule.max_count,
            prefilled_arguments_json=rule.prefilled,
            timeout_s=rule.timeout_s,
            when_tainted=rule.when_tainted,
            default_decision=(
                pb.DEFAULT_DECISION_APPROVE
                if rule.default_approve
                else pb.DEFAULT_DECISION_UNSPECIFIED
            ),
        )
        for rule in rules
    ]


def rules_to_prompt(rules: Iterable[ToolRule]) -> list[pb.ToolRule]:
    """Returns the rules that the prompt shows, with the fields that it shows, as protos."""
    return [
        pb.ToolRule(
            type=RULE_TYPES.to_proto[rule.type],
            tool_name=rule.tool_name,
            children=rule.children,
            max_count_limit=rule.max_count,
        )
        for rule in rules
        if rule.sentence is not None
    ]


def _rule(wire: pb.ToolRule) -> ToolRule:
    return ToolRule(
        type=RULE_TYPES.from_proto[wire.type],
        tool_name=wire.tool_name,
        children=tuple(wire.children),
        child_output_mapping=dict(wire.child_output_mapping),
        default_child=wire.default_child,
        require_output_mapping=wire.require_output_mapping,
        max_count=wire.max_count_limit,
        prefilled=dict(wire.prefilled_arguments_json),
        timeout_s=wire.timeout_s,
        when_tainted=wire.when_tainted,
        default_approve=wire.default_decision == pb.DEFAULT_DECISION_APPROVE,
    )
