"""Calls that rules allow: examples, and a comparison with a slow reference."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from security_examples import security_examples
from strata.agent_loop.domain.agent.tool_rules import ToolRule, base_rules, rules_in_force
from strata.agent_loop.rules.history import Called
from strata.agent_loop.rules.outputs import mapped_tool
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.shared.tool_rules import ToolRuleType

NAMES = ("a", "b", "c", "d")
OUTPUTS = ("yes", "no", True, 3, None, "other", {"k": [1]})
KEYS = ("yes", "no", "true", "3", "null", '{"k": [1]}')

some = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)
one = st.sampled_from(NAMES)
arguments = st.sampled_from(['{"x": 1}', '{"x": 2, "y": "z"}', "{}"])


@st.composite
def rules(draw: st.DrawFn) -> ToolRule:
    kind = draw(st.sampled_from(list(ToolRuleType)))
    name = draw(one)
    match kind:
        case ToolRuleType.CONDITIONAL:
            strict = draw(st.booleans())
            return ToolRule(
                kind,
                name,
                child_output_mapping=draw(
                    st.dictionaries(st.sampled_from(KEYS), one, min_size=1, max_size=3)
                ),
                default_child="" if strict else draw(st.sampled_from(["", *NAMES])),
                require_output_mapping=strict,
            )
        case ToolRuleType.CONSTRAIN_CHILD_TOOLS:
            children = draw(some)
            return ToolRule(kind, name, children, prefilled={children[0]: draw(arguments)})
        case ToolRuleType.PARENT_LAST_TOOL:
            return ToolRule(kind, name, draw(some))
        case ToolRuleType.MAX_COUNT_PER_STEP:
            return ToolRule(kind, name, max_count=draw(st.integers(1, 3)))
        case ToolRuleType.RUN_FIRST:
            return ToolRule(kind, name, prefilled={name: draw(arguments)})
        case _:
            return ToolRule(kind, name)


calls = st.builds(Called, one, st.sampled_from(OUTPUTS))
rule_sets = st.lists(rules(), max_size=5)
histories = st.lists(calls, max_size=6)
toolsets = st.lists(one, unique=True, max_size=4).map(tuple)


def reference(
    rule_set: list[ToolRule], history: list[Called], available: tuple[str, ...]
) -> tuple[list[str], bool, dict[str, list[str]]]:
    """Implements the definition of the rules without optimisation, rule by rule."""
    initial = [r for r in rule_set if r.type == "run_first" and r.tool_name in available]
    if len(history) == 0 and initial:
        allowed = {r.tool_name for r in initial}
        prefilled: dict[str, list[str]] = {}
        for r in initial:
            prefilled.setdefault(r.tool_name, []).append(r.prefilled[r.tool_name])
        return sorted(allowed), True, prefilled
    everything = set(available)
    sets, forced, prefilled = [everything], False, {}
    last = history[-1] if history else None
    counts = Counter(call.name for call in history)
    for r in rule_set:
        active = last is not None and last.name == r.tool_name
        if r.type == "constrain_child_tools" and active:
            sets.append(everything & set(r.children))
            forced = True
            for name, text in r.prefilled.items():
                prefilled.setdefault(name, []).append(text)
        if r.type == "parent_last_tool":
            sets.append(set(r.children) if active else everything - set(r.children))
            forced = forced or active
        if r.type == "conditional" and active:
            assert last is not None
            texts = {"yes": "yes", "no": "no", "other": "other", True: "true", 3: "3", None: "null"}
            shown = '{"k": [1]}' if isinstance(last.output, dict) else texts[last.output]
            if shown in r.child_output_mapping:
                sets.append({r.child_output_mapping[shown]})
                forced = True
            elif r.require_output_mapping:
                sets.append(set())
            elif r.default_child:
                sets.append({r.default_child})
                forced = True
        if r.type == "max_count_per_step" and counts[r.tool_name] >= r.max_count:
            sets.append(everything - {r.tool_name})
    allowed = set.intersection(*sets)
    return sorted(allowed), forced and bool(allowed), prefilled


@security_examples
@given(rule_sets, histories, toolsets)
def test_solver_agrees_with_the_reference(
    rule_set: list[ToolRule], history: list[Called], available: tuple[str, ...]
) -> None:
    allowed, forced, prefilled = reference(rule_set, history, available)
    allowance = ToolRulesSolver(rule_set).allowed(history, available)

    assert sorted(allowance.names) == allowed
    assert list(allowance.names) == [name for name in available if name in allowed]
    assert allowance.forced == forced
    assert {n: [p.arguments for p in ps] for n, ps in allowance.prefilled.items()} == prefilled


@settings(deadline=None)
@given(rule_sets, histories, toolsets)
def test_the_end_of_a_run_agrees_with_the_reference(
    rule_set: list[ToolRule], history: list[Called], available: tuple[str, ...]
) -> None:
    solver = ToolRulesSolver(rule_set)
    kinds = {(rule.type.value, rule.tool_name) for rule in rule_set}
    for name in NAMES:
        assert solver.ends(name) == (("exit_loop", name) in kinds)
    uncalled = {
        name
        for name in available
        if ("required_before_exit", name) in kinds and all(call.name != name for call in history)
    }
    assert set(solver.missing(history, available)) == uncalled
    assert len(solver.missing(history, available)) == len(uncalled)


@settings(deadline=None)
@given(rule_sets, st.lists(st.tuples(one, st.sampled_from(OUTPUTS)), max_size=12))
def test_allowed_calls_never_break_a_rule(
    rule_set: list[ToolRule], wishes: list[tuple[str, Any]]
) -> None:
    """Checks every pair and count of the calls that were allowed."""
    solver, made = ToolRulesSolver(rule_set), list[Called]()
    for name, output in wishes:
        if name in solver.allowed(made, NAMES).names:
            made.append(Called(name, output))
    names = [call.name for call in made]
    pairs = list(itertools.pairwise(names))
    for rule in rule_set:
        if rule.type is ToolRuleType.MAX_COUNT_PER_STEP:
            first = {r.tool_name for r in rule_set if r.type is ToolRuleType.RUN_FIRST}
            assert names.count(rule.tool_name) <= rule.max_count or rule.tool_name in first
        elif rule.type is ToolRuleType.CONSTRAIN_CHILD_TOOLS:
            assert all(child in rule.children for it, child in pairs if it == rule.tool_name)
        elif rule.type is ToolRuleType.PARENT_LAST_TOOL:
            assert all(it == rule.tool_name for it, child in pairs if child in rule.children)
    first = {rule.tool_name for rule in rule_set if rule.type is ToolRuleType.RUN_FIRST}
    assert not (names and first) or names[0] in first


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_call_counts_once_for_the_maximum(most: int) -> None:
    rule = ToolRule(ToolRuleType.MAX_COUNT_PER_STEP, "a", max_count=most)
    solver, made = ToolRulesSolver([rule]), list[Called]()
    while "a" in solver.allowed(made, NAMES).names:
        made.append(Called("a"))
    assert len(made) == most


def test_run_first_rule_of_a_missing_tool_does_not_block_the_agent() -> None:
    solver = ToolRulesSolver([ToolRule(ToolRuleType.RUN_FIRST, "gone")])
    assert solver.allowed((), NAMES).names == NAMES
    assert not solver.allowed((), NAMES).forced


def test_the_source_of_prefilled_arguments_names_the_rule() -> None:
    first = ToolRule(ToolRuleType.RUN_FIRST, "a", prefilled={"a": "{}"})
    child = ToolRule(ToolRuleType.CONSTRAIN_CHILD_TOOLS, "a", ("b",), prefilled={"b": "{}"})
    solver = ToolRulesSolver([first, child])
    assert [p.source for p in solver.allowed((), NAMES).prefilled["a"]] == ["InitToolRule(a)"]
    after = solver.allowed([Called("a")], NAMES).prefilled
    assert [p.source for p in after["b"]] == ["ChildToolRule(a->b)"]


@pytest.mark.parametrize(
    ("output", "key", "means"),
    [
        ("yes", "yes", True),
        ("yes\n", "yes", True),
        ('"yes"', "yes", True),
        ("Yes", "yes", False),
        (True, "true", True),
        ("True", "true", True),
        ("true", "True", True),
        (True, "1", False),
        (1, "true", False),
        (3, "3", True),
        (3.0, "3", True),
        ("3", "3.0", True),
        (None, "null", True),
        ("None", "null", True),
        ({"a": [1, True]}, '{"a": [1, true]}', True),
        ({"a": [1, 1]}, '{"a": [1, true]}', False),
        ('{"a": 1}', '{ "a": 1 }', True),
        ("", "", True),
        ("x", "", False),
    ],
)
def test_outputs_are_compared_by_value(output: Any, key: str, means: bool) -> None:
    assert (mapped_tool({key: "a"}, output) == "a") is means


def test_an_output_equal_as_text_is_preferred_to_an_equal_value() -> None:
    mapping = {"true": "a", "True": "b", '"True"': "c"}
    assert mapped_tool(mapping, "True") == "b"
    assert mapped_tool(mapping, "true") == "a"
    deep = "[" * 5_000 + "]" * 5_000
    assert mapped_tool({deep: "a"}, deep + " ") == "a", "deeply nested text is evaluated"


def test_hints_name_the_rules_of_the_tool_and_of_the_previous_call() -> None:
    solver = ToolRulesSolver(
        [
            ToolRule(ToolRuleType.RUN_FIRST, "a"),
            ToolRule(ToolRuleType.MAX_COUNT_PER_STEP, "a", max_count=2),
            ToolRule(ToolRuleType.CONSTRAIN_CHILD_TOOLS, "b", ("c",)),
            ToolRule(ToolRuleType.PARENT_LAST_TOOL, "d", ("a",)),
            ToolRule(ToolRuleType.EXIT_LOOP, "c"),
        ]
    )
    assert solver.hints("a", [Called("b")]) == [
        "a: at most 2 use(s) per response",
        "After using b, you must use one of these tools: c",
        "a can only be used after d",
    ]
    assert solver.hints("x", []) == []


def test_default_exit_rule_applies_unless_the_agent_has_its_own() -> None:
    tools = ("memory_insert", "memory_finish_edits")
    own = [ToolRule(ToolRuleType.MAX_COUNT_PER_STEP, "memory_insert", max_count=1)]
    default = ToolRule(ToolRuleType.EXIT_LOOP, "memory_finish_edits")
    assert rules_in_force(tools, ()) == (default,)
    assert rules_in_force(tools, own) == (*own, default)
    continues = [ToolRule(ToolRuleType.CONTINUE_LOOP, "memory_finish_edits")]
    assert rules_in_force(tools, continues) == tuple(continues)
    assert rules_in_force(("memory_insert",), ()) == ()


def test_base_rules_are_those_of_the_specification() -> None:
    own = [ToolRule(ToolRuleType.EXIT_LOOP, "memory_insert")]
    tools = ("mine", "conversation_search", "memory_insert", "memory_finish_edits", "send_message")
    assert [(rule.type.value, rule.tool_name) for rule in base_rules(tools, own)] == [
        ("continue_loop", "conversation_search"),
        ("exit_loop", "memory_finish_edits"),
        ("exit_loop", "send_message"),
    ]


def test_the_test_outputs_are_all_different() -> None:
    assert len({json.dumps(output) for output in OUTPUTS}) == len(OUTPUTS)
