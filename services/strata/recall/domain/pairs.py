"""Checks that a call and its return are never separated (docs/architecture.md, invariant 4)."""

from __future__ import annotations

from collections.abc import Iterable

from strata.protocol.errors import FieldViolation
from strata.recall.domain.messages import Message
from strata.shared.messages import MessageRole


def pair_violations(messages: Iterable[Message]) -> list[FieldViolation]:
    """Returns the violations in the tool calls and returns of one step.

    A message with tool calls must be followed by messages that return each call exactly once.
    Only approvals of these calls may come in between. A return needs its call before it.
    """
    violations: list[FieldViolation] = []
    open_calls: set[str] = set()
    opened_at = 0
    for index, message in enumerate(messages):
        returns = message.tool_return_ids()
        waits = message.role is MessageRole.APPROVAL
        if open_calls and not returns and not waits:
            violations.append(_unanswered(opened_at, open_calls))
            open_calls = set()
        for call_id in returns:
            if call_id in open_calls:
                open_calls.remove(call_id)
            else:
                violations.append(
                    FieldViolation(
                        f"messages[{index}]", f"returns {call_id!r}, which was not called before it"
                    )
                )
        calls = message.tool_call_ids()
        if calls:
            open_calls, opened_at = set(calls), index
            if len(open_calls) != len(calls):
                violations.append(
                    FieldViolation(f"messages[{index}]", "uses one tool_call_id twice")
                )
    if open_calls:
        violations.append(_unanswered(opened_at, open_calls))
    return violations


def _unanswered(index: int, call_ids: set[str]) -> FieldViolation:
    names = ", ".join(sorted(call_ids))
    return FieldViolation(f"messages[{index}]", f"has calls without a return: {names}")
