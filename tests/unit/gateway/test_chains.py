"""Who waits for whom among the runs that agents start."""

from __future__ import annotations

import pytest

from strata.gateway.runs.chains import Link, check_chain, conversation_with
from strata.gateway.runs.states import FINAL_STATES, RunState
from strata.shared.errors import FailedPreconditionError, Reason


def chain(*links: tuple[str, bool]) -> list[Link]:
    """A run of each agent, in the conversation of its name; the first one is the youngest."""
    return [
        Link(f"run-{number}", f"agent-{name}", f"conversation-{name}", RunState.RUNNING, awaited)
        for number, (name, awaited) in enumerate(links)
    ]


def refusal(links: list[Link], to: str, *, awaited: bool = True, limit: int = 8) -> Reason | None:
    try:
        check_chain(links, f"conversation-{to}", awaited=awaited, limit=limit)
    except FailedPreconditionError as error:
        return error.reason
    return None


def test_an_agent_does_not_wait_for_one_that_waits_for_it() -> None:
    links = chain(("c", True), ("b", True), ("a", False))
    assert refusal(links, "d") is None
    assert refusal(links, "a") is refusal(links, "b") is Reason.AGENT_WAITS
    assert refusal(links, "c") is Reason.AGENT_WAITS
    # Without waiting all may be told.
    assert [refusal(links, to, awaited=False) for to in "abcd"] == [None] * 4


def test_an_agent_waits_for_one_that_does_not_wait_any_more() -> None:
    links = chain(("c", True), ("b", False), ("a", False))
    assert refusal(links, "b") is Reason.AGENT_WAITS
    assert refusal(links, "a") is None


@pytest.mark.parametrize("awaited", [True, False])
def test_a_chain_has_so_many_runs(awaited: bool) -> None:
    links = chain(("c", False), ("b", False), ("a", False))
    assert refusal(links, "d", awaited=awaited, limit=4) is None
    assert refusal(links, "d", awaited=awaited, limit=3) is Reason.CHAIN_TOO_LONG


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_a_run_that_is_over_sends_nothing(state: RunState) -> None:
    over = [Link("run-0", "agent-a", "conversation-a", state, False)]
    assert refusal(over, "b", awaited=False) is Reason.RUN_FINISHED


def test_who_asked_is_told_where_it_asked() -> None:
    links = chain(("c", True), ("b", True), ("a", False))
    assert conversation_with(links, "agent-a") == "conversation-a"
    assert conversation_with(links, "agent-d") == ""
    # One's own conversation is no answer to anybody.
    assert conversation_with(links, "agent-c") == ""
