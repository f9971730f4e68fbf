"""Validates tool rules when an agent is created or changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.rules.prefilled import problems_of
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.protocol.errors import FieldViolation
from strata.shared.tool_rules import ToolRuleType

MAX_RULES = 256
MAX_TIMEOUT_S = 30 * 24 * 3600
_MAX_CHILDREN = 128
_MAX_TEXT = 10_000

_WITH_CHILDREN = frozenset({ToolRuleType.CONSTRAIN_CHILD_TOOLS, ToolRuleType.PARENT_LAST_TOOL})
_WITH_ARGUMENTS = frozenset({ToolRuleType.CONSTRAIN_CHILD_TOOLS, ToolRuleType.RUN_FIRST})


def shape_violations(field: str, rules: Sequence[ToolRule]) -> list[FieldViolation]:
    """Returns violations of rules that are incomplete or have fields that their type ignores."""
    if len(rules) > MAX_RULES:
        return [FieldViolation(field, f"has {len(rules)} rules, at most {MAX_RULES}")]
    violations = [
        FieldViolation(f"{field}[{index}].{part}", text)
        for index, rule in enumerate(rules)
        for part, text in (
            *_children_problems(rule),
            *_condition_problems(rule),
            *_count_problems(rule),
            *_argument_problems(rule),
        )
    ]
    return [*violations, *_contradictions(field, rules)]


def tool_violations(
    field: str, rules: Sequence[ToolRule], toolset: ToolSet, own: Sequence[str]
) -> list[FieldViolation]:
    """Returns violations of rules that do not match the tools of their agent.

    Args:
        field: The field of the request that holds the rules.
        rules: Rules without `shape_violations`.
        toolset: All tools that the agent may be offered: its own and those that folders add.
        own: Names of its own tools.
    """
    violations = [
        FieldViolation(f"{field}[{index}].{part}", text)
        for index, rule in enumerate(rules)
        for part, text in (*_unknown(rule, toolset), *_wrong_arguments(rule, toolset))
    ]
    if not violations and own and not ToolRulesSolver(rules).allowed((), own).names:
        violations.append(FieldViolation(field, "leave no tool that may be called first"))
    return violations


def _children_problems(rule: ToolRule) -> Iterator[tuple[str, str]]:
    if rule.type not in _WITH_CHILDREN:
        if rule.children:
            yield "children", f"do not belong to a {rule.type} rule"
        return
    if not rule.children:
        yield "children", "must name at least one tool"
    if len(rule.children) > _MAX_CHILDREN:
        yield "children", f"has {len(rule.children)} tools, at most {_MAX_CHILDREN}"
    for index, child in enumerate(rule.children):
        if not child:
            yield f"children[{index}]", "must not be empty"


def _condition_problems(rule: ToolRule) -> Iterator[tuple[str, str]]:
    if rule.type is not ToolRuleType.CONDITIONAL:
        for part in ("child_output_mapping", "default_child", "require_output_mapping"):
            if getattr(rule, part):
                yield part, f"does not belong to a {rule.type} rule"
        return
    if not rule.child_output_mapping:
        yield "child_output_mapping", "must name a tool for at least one output"
    if len(rule.child_output_mapping) > _MAX_CHILDREN:
        many = len(rule.child_output_mapping)
        yield "child_output_mapping", f"has {many} outputs, at most {_MAX_CHILDREN}"
    for key, child in rule.child_output_mapping.items():
        if len(key) > _MAX_TEXT or "\0" in key:
            text = f"has a key with NUL or more than {_MAX_TEXT} characters"
            yield "child_output_mapping", text
        elif not child:
            yield f"child_output_mapping[{key[:40]!r}]", "must not be empty"
    if rule.require_output_mapping and rule.default_child:
        yield "default_child", "is never used if require_output_mapping is set"


def _count_problems(rule: ToolRule) -> Iterator[tuple[str, str]]:
    if rule.type is ToolRuleType.MAX_COUNT_PER_STEP:
        if rule.max_count < 1:
            yield "max_count_limit", "must be at least 1"
    elif rule.max_count:
        yield "max_count_limit", f"does not belong to a {rule.type} rule"
    if rule.type is ToolRuleType.REQUIRES_APPROVAL:
        if not 0 <= rule.timeout_s <= MAX_TIMEOUT_S:
            yield "timeout_s", f"must be between 0 (the default) and {MAX_TIMEOUT_S}"
        if rule.default_approve and rule.when_tainted:
            text = (
                "must not be APPROVE with when_tainted: a person must decide after untrusted"
                " content"
            )
            yield "default_decision", text
        return
    for part, setting in (
        ("timeout_s", rule.timeout_s),
        ("when_tainted", rule.when_tainted),
        ("default_decision", rule.default_approve),
    ):
        if setting:
            yield part, f"does not belong to a {rule.type} rule"


def _argument_problems(rule: ToolRule) -> Iterator[tuple[str, str]]:
    if rule.prefilled and rule.type not in _WITH_ARGUMENTS:
        yield "prefilled_arguments_json", f"do not belong to a {rule.type} rule"
        return
    mine = {rule.tool_name} if rule.type is ToolRuleType.RUN_FIRST else set(rule.children)
    for name, text in rule.prefilled.items():
        part = f"prefilled_arguments_json[{name[:64]!r}]"
        if name not in mine:
            yield part, "is for a tool that the rule does not allow"
        elif len(text) > _MAX_TEXT or "\0" in text or "\\u0000" in text:
            yield part, f"has NUL or more than {_MAX_TEXT} characters"


def _contradictions(field: str, rules: Sequence[ToolRule]) -> list[FieldViolation]:
    ending = {rule.tool_name for rule in rules if rule.type is ToolRuleType.EXIT_LOOP}
    return [
        FieldViolation(f"{field}[{index}]", f"contradicts the exit_loop rule of {rule.tool_name}")
        for index, rule in enumerate(rules)
        if rule.type is ToolRuleType.CONTINUE_LOOP and rule.tool_name in ending
    ]


def _unknown(rule: ToolRule, toolset: ToolSet) -> Iterator[tuple[str, str]]:
    named_tools = [("tool_name", rule.tool_name)]
    named_tools += [(f"children[{index}]", child) for index, child in enumerate(rule.children)]
    named_tools += [
        (f"child_output_mapping[{key[:40]!r}]", child)
        for key, child in rule.child_output_mapping.items()
    ]
    if rule.default_child:
        named_tools.append(("default_child", rule.default_child))
    for part, name in named_tools:
        if toolset.find(name) is None:
            yield part, f"{name[:64]!r} is none of the agent's tools: {', '.join(toolset.names)}"


def _wrong_arguments(rule: ToolRule, toolset: ToolSet) -> Iterator[tuple[str, str]]:
    for name, text in rule.prefilled.items():
        tool = toolset.find(name)
        problems = problems_of(text, tool.schema.parameters) if tool is not None else ()
        for problem in problems:
            yield f"prefilled_arguments_json[{name[:64]!r}]", problem
