"""Chains of runs: runs that agents of other runs start by sending messages. Pure.

An agent sends a message to another by a tool; the run of the message has the agent's run as its
parent. A chain is a run, its parent, the parent of that and so on. A conversation has one run at a
time, so an agent that is asked for an answer by an agent that it waits for itself would never
give it, regardless of who started their runs (decision 0090).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.gateway.runs.domain.states import RunState
from strata.protocol.errors import FailedPreconditionError, Reason


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A run of a chain."""

    run_id: str
    agent_id: str
    conversation_id: str
    state: RunState


@dataclass(frozen=True, slots=True)
class Wait:
    """A run that waits for an answer.

    Attributes:
        run_id: The run.
        agent_id: Its agent.
        conversation_id: The conversation that has to answer.
    """

    run_id: str
    agent_id: str
    conversation_id: str


@dataclass(frozen=True, slots=True)
class AskedRun:
    """A run whose answer the agent of another run has asked for."""

    run_id: str
    agent_id: str
    state: RunState


Chain = Sequence[ChainLink]
"""A run first, then its parents."""


class ChainStore(Protocol):
    """Reads chains of runs."""

    async def chain(self, project_id: str, run_id: str, limit: int) -> Chain:
        """Returns a run and its parents, `limit` runs at most.

        Raises:
            NotFoundError: There is no such run (``RUN_NOT_FOUND``).
        """
        ...

    async def waits(self, project_id: str, conversation_id: str) -> Sequence[Wait]:
        """Returns the waits of the run of a conversation, and transitively theirs."""
        ...

    async def asked(self, project_id: str, run_id: str) -> Sequence[AskedRun]:
        """Returns the open and finished runs that answer the agent of a run, by id."""
        ...

    async def awaited(self, project_id: str, run_id: str) -> Sequence[str]:
        """Returns the open runs that the agent of a run waits for."""
        ...


def conversation_with(chain: Chain, agent_id: str) -> str:
    """Returns the conversation in which an agent of the chain asked; empty for other agents.

    A message to an agent that asked goes to the conversation in which it asked, not to its default
    conversation.
    """
    return next((link.conversation_id for link in chain[1:] if link.agent_id == agent_id), "")


def check_chain(chain: Chain, *, limit: int) -> None:
    """Checks that the agent of the first run may send messages.

    Args:
        chain: Its run, then the parents.
        limit: Maximum number of runs in a chain.

    Raises:
        FailedPreconditionError: Its run is over (``RUN_FINISHED``), or the chain is too long
            (``CHAIN_TOO_LONG``).
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
            f"The message has been passed on from agent to agent {limit - 1} times, which is the "
            "limit. Do what you can yourself, and say what is missing.",
            reason=Reason.CHAIN_TOO_LONG,
            metadata={"limit": str(limit)},
        )


def check_waits(own: ChainLink, conversation_id: str, waits: Sequence[Wait]) -> None:
    """Checks that a run may wait for the answer to a message.

    Args:
        own: The run.
        conversation_id: The conversation that receives the message.
        waits: The waits of that conversation's run, and transitively theirs.

    Raises:
        FailedPreconditionError: It would wait for itself (``AGENT_WAITS``).
    """
    if conversation_id == own.conversation_id:
        message = "This is your own conversation: you would wait for yourself."
        raise _would_wait(message, own.agent_id, own.run_id)
    for wait in waits:
        if wait.conversation_id == own.conversation_id:
            message = (
                f"{wait.agent_id} waits for your answer, so you cannot wait for what it would have"
                " to answer first. Say what you have to say in your reply."
            )
            raise _would_wait(message, wait.agent_id, wait.run_id)


def _would_wait(message: str, agent_id: str, run_id: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        message, reason=Reason.AGENT_WAITS, metadata={"agent_id": agent_id, "run_id": run_id}
    )
