"""Cycles among runs that wait for runs of other agents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata.gateway.runs.domain.chains import (
    ChainLink,
    Wait,
    check_chain,
    check_waits,
    conversation_with,
)
from strata.gateway.runs.domain.states import FINAL_STATES, RunState
from strata.protocol.errors import FailedPreconditionError, Reason


def chain(*names: str) -> list[ChainLink]:
    """Returns a chain with a run of each agent, in the conversation of its name, newest first."""
    return [
        ChainLink(f"run-{number}", f"agent-{name}", f"conversation-{name}", RunState.RUNNING)
        for number, name in enumerate(names)
    ]


def refusal(check: Callable[[], None]) -> Reason | None:
    try:
        check()
    except FailedPreconditionError as error:
        return error.reason
    return None


def test_an_agent_cannot_wait_for_an_agent_that_waits_for_it() -> None:
    [own] = chain("c")
    waits = [
        Wait("run-1", "agent-a", "conversation-b"),
        Wait("run-2", "agent-b", "conversation-c"),
    ]
    with pytest.raises(FailedPreconditionError, match="agent-b waits for your answer") as caught:
        check_waits(own, "conversation-a", waits)
    assert caught.value.reason is Reason.AGENT_WAITS
    assert caught.value.metadata == {"agent_id": "agent-b", "run_id": "run-2"}
    assert refusal(lambda: check_waits(own, "conversation-c", [])) is Reason.AGENT_WAITS
    assert refusal(lambda: check_waits(own, "conversation-a", waits[:1])) is None


def test_the_length_of_a_chain_is_limited() -> None:
    links = chain("c", "b", "a")
    assert refusal(lambda: check_chain(links, limit=4)) is None
    assert refusal(lambda: check_chain(links, limit=3)) is Reason.CHAIN_TOO_LONG


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_a_finished_run_cannot_send(state: RunState) -> None:
    over = [ChainLink("run-0", "agent-a", "conversation-a", state)]
    assert refusal(lambda: check_chain(over, limit=8)) is Reason.RUN_FINISHED


def test_the_conversation_of_an_agent_in_the_chain_is_returned() -> None:
    links = chain("c", "b", "a")
    assert conversation_with(links, "agent-a") == "conversation-a"
    assert conversation_with(links, "agent-d") == ""
    # The conversation of the agent itself is not returned.
    assert conversation_with(links, "agent-c") == ""
