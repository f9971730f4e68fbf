"""Evaluates tool rules: which tools may be called after the calls of a run (decision 0074).

The solver has no state: every result depends only on the rules and a history, so that a resumed
run gets the same results. Rules apply in this order:

1. Before the first call only the tools of ``run_first`` rules may be called, if there are any.
2. Later each ``constrain_child_tools``, ``parent_last_tool``, ``conditional`` and
   ``max_count_per_step`` rule may exclude tools.
3. ``exit_loop``, ``continue_loop``, ``required_before_exit`` and ``requires_approval`` exclude no
   tool; the loop calls `ends`, `continues`, `missing` and `gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.agent_loop.domain.agent.tool_rules import ToolRule
from strata.agent_loop.rules.history import Called
from strata.agent_loop.rules.outputs import mapped_tool
from strata.shared.tool_rules import ToolRuleType

_FORCING = frozenset(
    {
        ToolRuleType.CONSTRAIN_CHILD_TOOLS,
        ToolRuleType.PARENT_LAST_TOOL,
        ToolRuleType.CONDITIONAL,
    }
)
_ORDERING = _FORCING | {ToolRuleType.RUN_FIRST}


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Arguments that a rule prefills for a tool.

    Attributes:
        arguments: A JSON object, as text.
        source: The rule, for error messages.
    """

    arguments: str
    source: str


@dataclass(frozen=True, slots=True)
class Allowance:
    """The tools that may be called next.

    Attributes:
        names: Names of the tools, in the order in which they are offered.
        forced: One of them must be called.
        prefilled: Prefilled arguments by tool, in the order in which they apply.
    """

    names: tuple[str, ...]
    forced: bool = False
    prefilled: Mapping[str, tuple[Prefilled, ...]] = field(default_factory=dict)


class ToolRulesSolver:
    """Evaluates tool rules.

    Args:
        rules: The rules in force.
    """

    def __init__(self, rules: Sequence[ToolRule]) -> None:
        self._rules = tuple(rules)

    @property
    def orders(self) -> bool:
        """Whether a rule depends on the order of calls, so that calls must run in turn."""
        return any(rule.type in _ORDERING for rule in self._rules)

    def allowed(self, history: Sequence[Called], available: Sequence[str]) -> Allowance:
        """Returns the tools that may be called next.

        Args:
            history: The calls of the run so far, oldest first.
            available: Names of the agent's tools.
        """
        first = [r for r in self._of(ToolRuleType.RUN_FIRST) if r.tool_name in available]
        if not history and first:
            names = {rule.tool_name for rule in first}
            allowed_names = tuple(name for name in available if name in names)
            return Allowance(allowed_names, True, _prefilled_first(first))
        allowed_names, forced = tuple(available), False
        for rule in self._rules:
            is_left = _left_by(rule, history)
            allowed_names = tuple(name for name in allowed_names if is_left(name))
            forced = forced or _forces(rule, history)
        return Allowance(allowed_names, forced and bool(allowed_names), self._prefilled(history))

    def ends(self, name: str) -> bool:
        """Returns whether a call of the tool ends the run (``exit_loop``)."""
        return any(rule.tool_name == name for rule in self._of(ToolRuleType.EXIT_LOOP))

    def continues(self, name: str) -> bool:
        """Returns whether the run continues after a call of the tool (``continue_loop``)."""
        return any(rule.tool_name == name for rule in self._of(ToolRuleType.CONTINUE_LOOP))

    def restricts_next(self, history: Sequence[Called]) -> bool:
        """Returns whether one of certain tools must follow the last call.

        This is so if a ``constrain_child_tools`` rule applies to it, or a ``conditional`` rule to
        its output.
        """
        kinds = (ToolRuleType.CONSTRAIN_CHILD_TOOLS, ToolRuleType.CONDITIONAL)
        return any(rule.type in kinds and _forces(rule, history) for rule in self._rules)

    def branches(self, name: str) -> bool:
        """Returns whether the tool's output decides which tool may follow (``conditional``)."""
        return any(rule.tool_name == name for rule in self._of(ToolRuleType.CONDITIONAL))

    def gates(self, name: str, *, tainted: bool) -> bool:
        """Returns whether calls of the tool need approval (``requires_approval``).

        Args:
            name: Name of the tool.
            tainted: Whether the context holds untrusted content.
        """
        return any(rule.tool_name == name for rule in self._gating(tainted=tainted))

    def timeouts(self, names: Collection[str], *, tainted: bool) -> list[int]:
        """Returns the seconds that rules give a person to decide about calls of these tools."""
        gates = self._gating(tainted=tainted)
        return [rule.timeout_s for rule in gates if rule.tool_name in names and rule.timeout_s]

    def approves_by_default(self, names: Collection[str], *, tainted: bool) -> bool:
        """Returns whether calls of these tools are approved by default.

        For each tool, at least one rule must approve by default, and none may deny by default.
        """
        gates = self._gating(tainted=tainted)
        decisions = [(rule.tool_name, rule.default_approve) for rule in gates]
        return all((name, True) in decisions and (name, False) not in decisions for name in names)

    def _gating(self, *, tainted: bool) -> list[ToolRule]:
        gates = self._of(ToolRuleType.REQUIRES_APPROVAL)
        return [rule for rule in gates if tainted or not rule.when_tainted]

    def missing(self, history: Sequence[Called], available: Collection[str]) -> list[str]:
        """Returns the tools of ``required_before_exit`` rules that were not called yet.

        Tools that the agent does not have are left out, since they cannot be called.
        """
        called_names = {call.name for call in history}
        required_names = (rule.tool_name for rule in self._of(ToolRuleType.REQUIRED_BEFORE_EXIT))
        return [
            n for n in dict.fromkeys(required_names) if n in available and n not in called_names
        ]

    def hints(self, name: str, history: Sequence[Called]) -> list[str]:
        """Returns the sentences of rules that a refused call may have violated.

        These are rules for the tool, rules for the tool that was called before it, and
        ``parent_last_tool`` rules that have it as a child.
        """
        last = history[-1].name if history else None
        concerned = (
            rule
            for rule in self._rules
            if rule.tool_name in (name, last)
            or (rule.type is ToolRuleType.PARENT_LAST_TOOL and name in rule.children)
        )
        sentences = (rule.sentence for rule in concerned)
        return list(dict.fromkeys(text for text in sentences if text is not None))

    def _of(self, kind: ToolRuleType) -> list[ToolRule]:
        return [rule for rule in self._rules if rule.type is kind]

    def _prefilled(self, history: Sequence[Called]) -> Mapping[str, tuple[Prefilled, ...]]:
        prefilled: dict[str, tuple[Prefilled, ...]] = {}
        for rule in self._of(ToolRuleType.CONSTRAIN_CHILD_TOOLS):
            if not _is_last(rule, history):
                continue
            for name, arguments in rule.prefilled.items():
                entry = Prefilled(arguments, f"ChildToolRule({rule.tool_name}->{name})")
                prefilled[name] = (*prefilled.get(name, ()), entry)
        return prefilled


def next_by_output(rule: ToolRule, output: Any) -> tuple[str, ...] | None:
    """Returns which tools a ``conditional`` rule allows after an output; None for all."""
    child = mapped_tool(rule.child_output_mapping, output)
    if child is not None:
        return (child,)
    if rule.require_output_mapping:
        return ()
    return (rule.default_child,) if rule.default_child else None


def _prefilled_first(rules: Sequence[ToolRule]) -> Mapping[str, tuple[Prefilled, ...]]:
    prefilled: dict[str, tuple[Prefilled, ...]] = {}
    for rule in rules:
        arguments = rule.prefilled.get(rule.tool_name)
        if arguments is not None:
            entry = Prefilled(arguments, f"InitToolRule({rule.tool_name})")
            prefilled[rule.tool_name] = (*prefilled.get(rule.tool_name, ()), entry)
    return prefilled


def _is_last(rule: ToolRule, history: Sequence[Called]) -> bool:
    return bool(history) and history[-1].name == rule.tool_name


def _left_by(rule: ToolRule, history: Sequence[Called]) -> Callable[[str], bool]:
    """Returns a predicate that is true for the names of tools that a rule allows."""
    match rule.type:
        case ToolRuleType.CONSTRAIN_CHILD_TOOLS if _is_last(rule, history):
            return set(rule.children).__contains__
        case ToolRuleType.PARENT_LAST_TOOL:
            children, last = set(rule.children), _is_last(rule, history)
            return lambda name: (name in children) is last
        case ToolRuleType.CONDITIONAL if _is_last(rule, history):
            names = next_by_output(rule, history[-1].output)
            return (lambda _: True) if names is None else set(names).__contains__
        case ToolRuleType.MAX_COUNT_PER_STEP:
            spent = sum(call.name == rule.tool_name for call in history) >= rule.max_count
            return lambda name: not (spent and name == rule.tool_name)
        case _:
            return lambda _: True


def _forces(rule: ToolRule, history: Sequence[Called]) -> bool:
    if rule.type not in _FORCING or not _is_last(rule, history):
        return False
    if rule.type is ToolRuleType.CONDITIONAL:
        return next_by_output(rule, history[-1].output) is not None
    return True
