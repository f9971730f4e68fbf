"""Runs that the agents of other runs start: who waits for whom, and how far it may go. Pure.

An agent sends a message to another by a tool; the run of the message has the agent's run as its
parent. A chain is a run, its parent, the parent of that and so on. A conversation has one run at a
time, so an agent that is asked for an answer by an agent that it waits for itself would never
give it (decision 0090).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.gateway.runs.states import RunState
from strata.shared.errors import FailedPreconditionError, Reason


@dataclass(frozen=True, slots=True)
class Link:
    """A run of a chain.

    Attributes:
        awaited: Its parent waits for its end.
    """

    run_id: str
    agent_id: str
    conversation_id: str
    state: RunState
    awaited: bool


Chain = Sequence[Link]
"""A run first, then its parents."""


class ChainStore(Protocol):
    """Where chains are."""

    async def chain(self, project_id: str, run_id: str, limit: int) -> Chain:
        """Returns a run and its parents, `limit` runs at most.

        Raises:
            NotFoundError: There is no such run (``RUN_NOT_FOUND``).
        """
        ...

    async def awaited(self, project_id: str, run_id: str) -> Sequence[str]:
        """Returns the runs that are not over and that the agent of a run waits for."""
        ...


def conversation_with(chain: Chain, agent_id: str) -> str:
    """Returns the conversation in which an agent of the chain asked; empty if it is none of them.

    What is told to an agent that asked belongs where it asked, and not into its default
    conversation.
    """
    return next((link.conversation_id for link in chain[1:] if link.agent_id == agent_id), "")


def check_chain(chain: Chain, conversation_id: str, *, awaited: bool, limit: int) -> None:
    """Makes sure that the agent of the first run may send a message to a conversation.

    Args:
        chain: Its run and the parents of that.
        conversation_id: Where the message goes.
        awaited: It waits for the answer.
        limit: Runs that a chain may have.

    Raises:
        FailedPreconditionError: Its run is over (``RUN_FINISHED``), the chain is too long
            (``CHAIN_TOO_LONG``), or it would wait for a run that waits for it (``AGENT_WAITS``).
    """
    own = chain[0]
    if own.state.final:
        raise FailedPreconditionError(
            f"A run that is {own.state} cannot send messages.",
            reason=Reason.RUN_FINISHED,
            metadata={"state": own.state},
        )
    if len(chain) >= limit:
        raise FailedPreconditionError(
            f"The message has been passed on from agent to agent {limit - 1} times, as often as it"
            " may be. Do what you can yourself, and say what is missing.",
            reason=Reason.CHAIN_TOO_LONG,
            metadata={"limit": str(limit)},
        )
    if awaited:
        for link in chain:
            if link.conversation_id == conversation_id:
                raise _waits(link, own)
            if not link.awaited:
                break


def _waits(link: Link, own: Link) -> FailedPreconditionError:
    if link is own:
        told = "This is your own conversation: you would wait for yourself."
    else:
        told = (
            f"{link.agent_id} waits for your answer, so it cannot answer you now. Say what you"
            " have to say in your reply."
        )
    return FailedPreconditionError(
        told,
        reason=Reason.AGENT_WAITS,
        metadata={"agent_id": link.agent_id, "run_id": link.run_id},
    )
