"""Invalid rules are refused when an agent is created or changed."""

from __future__ import annotations

from typing import Any

import pytest

from strata.agent_loop.convert.tool_rules import rule_violations, rules_from_proto
from strata.agent_loop.domain.model.chat import ToolSchema
from strata.agent_loop.domain.tools import Tool, ToolSet
from strata.agent_loop.rules.validation import MAX_RULES, tool_violations
from strata.api.common.v1 import tool_pb2 as pb
from strata.shared.tool_rules import ToolRuleType

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS = ToolSet(tuple(Tool(ToolSchema(name, "", SCHEMA)) for name in ("a", "b", "open_files")))
OWN = ("a", "b")


def rule(kind: str, name: str = "a", **fields: Any) -> pb.ToolRule:
    number = pb.ToolRuleType.Value(f"TOOL_RULE_TYPE_{ToolRuleType(kind).name}")
    return pb.ToolRule(type=number, tool_name=name, **fields)


GOOD: dict[str, dict[str, Any]] = {
    "run_first": {"prefilled_arguments_json": {"a": '{"x": 1}'}},
    "exit_loop": {},
    "continue_loop": {},
    "conditional": {"child_output_mapping": {"yes": "b"}, "default_child": "a"},
    "constrain_child_tools": {"children": ["b"], "prefilled_arguments_json": {"b": "{}"}},
    "max_count_per_step": {"max_count_limit": 1},
    "parent_last_tool": {"children": ["open_files"]},
    "required_before_exit": {},
    "requires_approval": {"timeout_s": 60},
}


def wrong(*rules: pb.ToolRule, own: tuple[str, ...] = OWN) -> list[str]:
    """Returns the fields with violations."""
    violations = rule_violations("tool_rules", rules)
    violations = violations or tool_violations("tool_rules", rules_from_proto(rules), TOOLS, own)
    return [violation.field.removeprefix("tool_rules") for violation in violations]


@pytest.mark.parametrize("kind", [kind.value for kind in ToolRuleType])
def test_every_rule_type_has_a_valid_example(kind: str) -> None:
    assert wrong(rule(kind, **GOOD[kind])) == []


@pytest.mark.parametrize("kind", [kind.value for kind in ToolRuleType])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("children", ["b"]),
        ("child_output_mapping", {"x": "b"}),
        ("default_child", "b"),
        ("require_output_mapping", True),
        ("max_count_limit", 2),
        ("prefilled_arguments_json", {"a": "{}"}),
        ("when_tainted", True),
        ("timeout_s", 60),
        ("default_decision", pb.DEFAULT_DECISION_APPROVE),
    ],
)
def test_settings_that_a_type_ignores_are_refused(kind: str, field: str, value: Any) -> None:
    used = {
        "children": {"constrain_child_tools", "parent_last_tool"},
        "child_output_mapping": {"conditional"},
        "default_child": {"conditional"},
        "require_output_mapping": {"conditional"},
        "max_count_limit": {"max_count_per_step"},
        "prefilled_arguments_json": {"run_first", "constrain_child_tools"},
        "when_tainted": {"requires_approval"},
        "timeout_s": {"requires_approval"},
        "default_decision": {"requires_approval"},
    }
    if kind not in used[field]:
        violations = rule_violations("tool_rules", [rule(kind, **{**GOOD[kind], field: value})])
        assert [v.field for v in violations] == [f"tool_rules[0].{field}"]


@pytest.mark.parametrize(
    ("broken", "fields"),
    [
        (pb.ToolRule(tool_name="a"), ["[0].type"]),
        (pb.ToolRule(type=99, tool_name="a"), ["[0].type"]),  # type: ignore[arg-type]
        (rule("exit_loop", ""), ["[0].tool_name"]),
        (rule("requires_approval", timeout_s=-1), ["[0].timeout_s"]),
        (rule("requires_approval", timeout_s=31 * 24 * 3600), ["[0].timeout_s"]),
        (rule("exit_loop", "gone"), ["[0].tool_name"]),
        (rule("constrain_child_tools"), ["[0].children"]),
        (rule("parent_last_tool"), ["[0].children"]),
        (rule("parent_last_tool", children=["b", ""]), ["[0].children[1]"]),
        (rule("parent_last_tool", children=["b", "gone"]), ["[0].children[1]"]),
        (rule("parent_last_tool", children=["b"] * 200), ["[0].children"]),
        (rule("conditional"), ["[0].child_output_mapping"]),
        (rule("conditional", child_output_mapping={"y": ""}), ["[0].child_output_mapping['y']"]),
        (rule("conditional", child_output_mapping={"y": "no"}), ["[0].child_output_mapping['y']"]),
        (rule("conditional", child_output_mapping={"\0": "b"}), ["[0].child_output_mapping"]),
        (
            rule("conditional", child_output_mapping={"y": "b"}, default_child="gone"),
            ["[0].default_child"],
        ),
        (
            rule(
                "conditional",
                child_output_mapping={"y": "b"},
                default_child="b",
                require_output_mapping=True,
            ),
            ["[0].default_child"],
        ),
        (rule("max_count_per_step"), ["[0].max_count_limit"]),
        (rule("max_count_per_step", max_count_limit=-1), ["[0].max_count_limit"]),
        *(
            (
                rule("run_first", prefilled_arguments_json={name: text}),
                [f"[0].prefilled_arguments_json['{name}']"],
            )
            for name, text in (
                ("a", "{"),
                ("a", "[]"),
                ("a", '{"y": 1}'),
                ("a", '{"x": "1"}'),
                ("a", '{"x": "\\u0000"}'),
                ("b", "{}"),
            )
        ),
    ],
)
def test_violations_name_the_wrong_field(broken: pb.ToolRule, fields: list[str]) -> None:
    assert wrong(broken) == fields
    # The number is that of the rule.
    assert wrong(rule("exit_loop"), broken) == [field.replace("[0]", "[1]", 1) for field in fields]


def test_contradictions_are_found() -> None:
    assert wrong(rule("exit_loop"), rule("continue_loop")) == ["[1]"]
    assert wrong(rule("exit_loop"), rule("continue_loop", "b")) == []
    # Neither tool may be called first: each waits for the other.
    waits = (
        rule("parent_last_tool", children=["b"]),
        rule("parent_last_tool", "b", children=["a"]),
    )
    assert wrong(*waits) == [""]
    assert wrong(*waits, rule("run_first")) == []
    # The file tool is offered only with a folder; without one the agent cannot begin.
    assert wrong(rule("parent_last_tool", "open_files", children=["a", "b"])) == [""]


def test_number_of_rules_is_limited() -> None:
    assert wrong(*[rule("exit_loop")] * MAX_RULES) == []
    assert wrong(*[rule("exit_loop")] * (MAX_RULES + 1)) == [""]


def test_a_taint_rule_cannot_approve_by_default() -> None:
    approve, deny = pb.DEFAULT_DECISION_APPROVE, pb.DEFAULT_DECISION_DENY
    both = rule("requires_approval", default_decision=approve, when_tainted=True)
    assert wrong(both) == ["[0].default_decision"]
    assert wrong(rule("requires_approval", default_decision=approve)) == []
    assert wrong(rule("requires_approval", default_decision=deny, when_tainted=True)) == []
    unknown = rule("requires_approval")
    unknown.default_decision = 9  # type: ignore[assignment]
    assert wrong(unknown) == ["[0].default_decision"]
