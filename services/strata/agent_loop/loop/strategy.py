"""The two loops, V2 and V3: which tools the model is offered, when a turn ends (decision 0044).

Everything else is shared: journal, approvals, rules, compaction, streaming. A strategy has no
state: its decisions depend only on stored messages, so that another dispatch decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from strata.agent_loop.context.added_arguments import (
    ArgumentsStream,
    added_names,
    take_out,
    with_added,
)
from strata.agent_loop.context.requests import Offer
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.types import AGENT_TYPES, LoopKind
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import (
    ModelReply,
    TextPart,
    ToolChoice,
    ToolChoiceMode,
)
from strata.agent_loop.domain.model.proofs import thought
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.rules.history import Called, called_by
from strata.agent_loop.rules.refusals import CONSTRAINT
from strata.agent_loop.rules.solver import ToolRulesSolver
from strata.shared.messages import MessageRole, ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import TEXT_TOOLS

REQUIRED_V3 = "ToolRuleViolated: You must call {} at least once to exit the loop."
REQUIRED_V2 = "Continuing, user expects these tools: [{}] to be called still."
RULE_VIOLATED = "Continuing: tool rule violation."
CHILD_RULE = "Continuing: child tool rule."
CONTINUE_RULE = "Continuing: continue tool rule."
HEARTBEAT_REQUESTED = "Function called using request_heartbeat=true, returning control"
CALL_FAILED = "Function call failed, returning control"


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The state of a run after a step.

    Attributes:
        message: The step's last message: a reply without calls, or the returns of its calls.
        heartbeats: Ids of the run's calls that requested a heartbeat.
        history: The calls of the run, including the step's.
        names: Names of the agent's tools.
        solver: The tool rules.
    """

    message: Message
    heartbeats: frozenset[str]
    history: Sequence[Called]
    names: Sequence[str]
    solver: ToolRulesSolver

    @property
    def is_text(self) -> bool:
        """Whether the model called no tool."""
        return self.message.role is MessageRole.ASSISTANT and not self.message.tool_calls

    @property
    def callable(self) -> tuple[str, ...]:
        """Tools that may be called next."""
        return self.solver.allowed(self.history, self.names).names

    @property
    def due(self) -> list[str]:
        """Tools that must be called before the turn ends; empty if no tool may be called."""
        missing = self.solver.missing(self.history, self.names)
        return missing if missing and self.callable else []


class LoopStrategy(Protocol):
    """One of the two loops."""

    def offered(self, offer: Offer, solver: ToolRulesSolver) -> Offer:
        """Returns the offer to the model, from the tools that the rules allow."""
        ...

    def taken(self, reply: ModelReply, tools: ToolSet, solver: ToolRulesSolver) -> ModelReply:
        """Returns a reply with its calls in the form in which they are run and stored."""
        ...

    def wants_to_end(self, end: StepEnd) -> bool:
        """Returns whether a step would end the turn if no required tool was missing."""
        ...

    def outcome(self, end: StepEnd, note: str | None) -> tuple[StopReason | None, str | None]:
        """Returns the stop reason if a step ends the turn; else None and the heartbeat, if any.

        Args:
            end: The state after the step.
            note: The heartbeat to use if the turn continues and no other is needed.
        """
        ...


class V3Loop:
    """The V3 loop: the model is asked again after calls; a reply without a call ends the turn."""

    def offered(self, offer: Offer, solver: ToolRulesSolver) -> Offer:
        """See `LoopStrategy`: the offer is unchanged."""
        return offer

    def taken(self, reply: ModelReply, tools: ToolSet, solver: ToolRulesSolver) -> ModelReply:
        """See `LoopStrategy`: the reply is unchanged."""
        return reply

    def wants_to_end(self, end: StepEnd) -> bool:
        """See `LoopStrategy`."""
        return end.is_text or _exits(end)

    def outcome(self, end: StepEnd, note: str | None) -> tuple[StopReason | None, str | None]:
        """See `LoopStrategy`."""
        if not self.wants_to_end(end):
            return None, note
        if due := end.due:
            return None, REQUIRED_V3.format(", ".join(due))
        return (StopReason.END_TURN if end.is_text else StopReason.TOOL_RULE), None


@dataclass(frozen=True, slots=True)
class V2Loop:
    """The V2 loop: the model must call a tool in each step, and requests a heartbeat to continue.

    If no tool can be called, since the agent has none or the rules allow none, text ends the turn.

    Attributes:
        thoughts: Whether the model writes its thoughts into its calls.
    """

    thoughts: bool = False

    def offered(self, offer: Offer, solver: ToolRulesSolver) -> Offer:
        """See `LoopStrategy`: tools get the added arguments, and a call is required."""
        tools = ToolSet(
            tuple(
                replace(
                    tool,
                    schema=with_added(
                        tool,
                        thoughts=self.thoughts,
                        heartbeat=not _terminal(tool.name, solver),
                    ),
                )
                for tool in offer.tools.tools
            )
        )
        free = tools.tools and offer.choice.mode is ToolChoiceMode.AUTO
        choice = ToolChoice.required() if free else offer.choice
        own = offer.tools

        def stream(name: str) -> ArgumentsStream:
            return ArgumentsStream(added_names(own.find(name), thoughts=self.thoughts))

        return replace(
            offer,
            tools=tools,
            choice=choice,
            parallel=False,
            # Text where a call is required is not a reply to the user.
            json_text=not choice.forces_a_call,
            stream=stream,
        )

    def taken(self, reply: ModelReply, tools: ToolSet, solver: ToolRulesSolver) -> ModelReply:
        """See `LoopStrategy`.

        Thoughts become reasoning, heartbeats a field of the calls. Text is marked as a thought
        beside its call.
        """
        out = [
            take_out(
                call,
                added_names(tools.find(call.name), thoughts=self.thoughts),
                heartbeat=not _terminal(call.name, solver),
            )
            for call in reply.tool_calls
        ]
        thoughts = tuple(thought(split.thought) for split in out if split.thought.strip())
        calls = tuple(split.call for split in out)
        content = (
            replace(part, beside_call=bool(calls)) if isinstance(part, TextPart) else part
            for part in reply.content
        )
        return replace(reply, content=(*content, *thoughts), tool_calls=calls)

    def wants_to_end(self, end: StepEnd) -> bool:
        """See `LoopStrategy`."""
        if end.is_text:
            return True
        return bool(end.message.tool_returns) and _reason_to_go_on(end) is None

    def outcome(self, end: StepEnd, note: str | None) -> tuple[StopReason | None, str | None]:
        """See `LoopStrategy`."""
        if end.is_text:
            return (StopReason.NO_TOOL_CALL if end.callable else StopReason.END_TURN), None
        if not end.message.tool_returns:
            return None, note
        reason = _reason_to_go_on(end)
        if reason is not None:
            return None, note or reason
        if due := end.due:
            return None, REQUIRED_V2.format(", ".join(due))
        # TOOL_RULE shows that the model requested a heartbeat, but a rule ended the turn.
        has_heartbeat = any(
            tool_return.tool_call_id in end.heartbeats for tool_return in end.message.tool_returns
        )
        return (StopReason.TOOL_RULE if has_heartbeat else StopReason.END_TURN), None


V3 = V3Loop()


def strategy_of(agent: Agent) -> LoopStrategy:
    """Returns the loop of an agent."""
    if AGENT_TYPES[agent.type].loop is LoopKind.V3:
        return V3
    return V2Loop(agent.model.put_inner_thoughts_in_kwargs)


def heartbeats_of(messages: Sequence[Message]) -> frozenset[str]:
    """Returns the ids of calls that requested a heartbeat."""
    calls = (call for message in messages for call in message.tool_calls)
    return frozenset(call.id for call in calls if call.request_heartbeat)


def _terminal(name: str, solver: ToolRulesSolver) -> bool:
    """Returns whether a call of a tool ends a turn of the V2 loop."""
    return solver.ends(name) or (name in TEXT_TOOLS and not solver.continues(name))


def _exits(end: StepEnd) -> bool:
    returns = end.message.tool_returns
    return any(
        tool_return.status is ToolStatus.OK and end.solver.ends(tool_return.name)
        for tool_return in returns
    )


def _reason_to_go_on(end: StepEnd) -> str | None:
    """Returns the heartbeat with which the V2 loop continues after calls; None if it ends."""
    returns = end.message.tool_returns
    ran = [tool_return for tool_return in returns if tool_return.status is ToolStatus.OK]
    if any(_terminal(tool_return.name, end.solver) for tool_return in ran):
        return None
    failed = [tool_return for tool_return in returns if tool_return.status is not ToolStatus.OK]
    if any(
        tool_return.provenance is Provenance.SYSTEM
        and str(called_by(tool_return).output).startswith(CONSTRAINT)
        for tool_return in failed
    ):
        return RULE_VIOLATED
    if failed:
        # Before the child and continue rules: the model must be informed of the failure.
        return CALL_FAILED
    if end.solver.restricts_next(end.history):
        return CHILD_RULE
    if any(end.solver.continues(tool_return.name) for tool_return in ran):
        return CONTINUE_RULE
    if any(tool_return.tool_call_id in end.heartbeats for tool_return in returns):
        return HEARTBEAT_REQUESTED
    return None
