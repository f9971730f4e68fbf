"""Applies the tool rules in a turn: which tools are offered, which calls may run, when it ends.

All decisions depend only on the rules and on what is committed and journalled, so that another
dispatch of the run decides the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strata.agent_loop.context.requests import Offer
from strata.agent_loop.domain.agent.agents import Agent
from strata.agent_loop.domain.agent.tool_rules import rules_in_force
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    JsonReply,
    ModelReply,
    ToolCall,
    ToolChoice,
)
from strata.agent_loop.domain.run.journal import StepRecord
from strata.agent_loop.domain.tools import ToolSet
from strata.agent_loop.loop.calls import fitted, invalid_arguments, refusal, runnable
from strata.agent_loop.loop.replies_in_json import with_json_replies
from strata.agent_loop.loop.strategy import V3, LoopStrategy, StepEnd, heartbeats_of, strategy_of
from strata.agent_loop.rules.history import Called, called_by, calls_of
from strata.agent_loop.rules.prefilled import merged
from strata.agent_loop.rules.refusals import BY_CLIENT, CONSTRAINT, INVALID_PREFILLED, NOT_APPROVED
from strata.agent_loop.rules.repetition import (
    REPETITIONS_ENDED,
    REPETITIONS_NOTED,
    StepTrace,
    repetitions,
    traces_of,
)
from strata.agent_loop.rules.solver import Allowance, ToolRulesSolver
from strata.shared.messages import MessageRole
from strata.shared.provenance import Provenance
from strata.shared.stop_reasons import StopReason
from strata.shared.tool_catalogue import CODE_TOOLS
from strata.shared.tool_rules import ToolRuleType, rule_element

_HINTS = "\n** Hint: Possible rules that were violated:\n"
_REPEATED = (
    "You made the same tool calls with the same arguments {} times in a row, and the results were"
    " the same each time. Another repetition will not change them. Do something else, or answer"
    " the user with what you know."
)


@dataclass(frozen=True, slots=True)
class CallVerdict:
    """Whether a call is run, and with which arguments.

    Attributes:
        arguments: The arguments that the tool gets.
        refusal: Error text for the model if the call is not run; None if it is run.
        invalid: A rule prescribes invalid arguments for the call, which ends the turn.
    """

    arguments: str
    refusal: str | None = None
    invalid: bool = False


class TurnRules:
    """The rules of a running turn.

    Attributes:
        rules: The rules in force, which are journalled with a reply.
        loop: The strategy of the agent's loop version.

    Args:
        agent: The agent.
        committed: Messages that the run has stored; if the run answers an approval request, the
            messages of the run that asked come first.
        json_reply: The JSON form that replies to the user must have; None for any text.
    """

    def __init__(
        self, agent: Agent, committed: Iterable[Message], json_reply: JsonReply | None = None
    ) -> None:
        self.rules = rules_in_force(agent.tools, agent.tool_rules)
        self.loop = strategy_of(agent)
        self._json_reply = json_reply
        self._default = rules_in_force(agent.tools, ())
        self._solver = ToolRulesSolver(self.rules)
        committed = tuple(committed)
        self._history = calls_of(committed)
        self._traces = traces_of(committed)
        self._last = _last_visible(committed)
        self._heartbeats = heartbeats_of(committed)
        # With rules, one call per reply is requested; several calls are run in order. Approvals
        # do not depend on other calls: one request can ask for several.
        gated_only = all(rule.type is ToolRuleType.REQUIRES_APPROVAL for rule in agent.tool_rules)
        self._parallel = None if gated_only else False

    def offer(self, toolset: ToolSet) -> Offer:
        """Returns the tools and the tool choice of the next model request."""
        return self._offered(self._allowed(toolset))

    def shown(self, toolset: ToolSet) -> ToolSet:
        """Returns all tools with the schemas that the model is offered, allowed now or not."""
        return self._offered(Offer(toolset)).tools

    @property
    def json_replies(self) -> bool:
        """Whether replies to the user must be JSON."""
        return self._json_reply is not None

    def _offered(self, offer: Offer) -> Offer:
        return self.loop.offered(with_json_replies(offer, self._json_reply), self._solver)

    def taken(self, reply: ModelReply, toolset: ToolSet) -> ModelReply:
        """Returns a reply with its calls in the form in which they are run and stored.

        Args:
            reply: The model's reply.
            toolset: The tools that the agent has now.
        """
        return self.loop.taken(reply, toolset, self._solver)

    def _allowed(self, toolset: ToolSet) -> Offer:
        allowance = self._solver.allowed(self._history, toolset.names)
        if toolset.tools and not allowance.names:
            # Calls in the window need their tool definitions; the model may only write text.
            return Offer(toolset, ToolChoice.none(), self._parallel)
        choice = ToolChoice()
        due = self._due(toolset, allowance)
        if due:
            only = due[0] if len(due) == 1 else None
            choice = ToolChoice.named(only) if only else ToolChoice.required()
            return Offer(toolset.only(due), choice, self._parallel)
        if allowance.forced:
            only = allowance.names[0] if len(allowance.names) == 1 else None
            choice = ToolChoice.named(only) if only else ToolChoice.required()
        return Offer(toolset.only(allowance.names), choice, self._parallel)

    def of(self, record: StepRecord, granted: Mapping[str, str] | None = None) -> StepRules:
        """Returns the rules for the calls of a reply: those in force when it was made.

        Args:
            record: The reply.
            granted: See `StepRules`.
        """
        # Releases that did not journal rules had only the default rules.
        rules = self._default if record.rules is None else record.rules
        solver, tainted = ToolRulesSolver(rules), bool(record.snapshot.taint)
        return StepRules(
            solver,
            tuple(self._history),
            granted or {},
            tainted,
            traces=tuple(self._traces),
            loop=self.loop,
            heartbeats=self._heartbeats,
        )

    def timeouts(self, names: Collection[str], *, tainted: bool) -> list[int]:
        """Returns the seconds that rules give a person to decide about calls of these tools."""
        return self._solver.timeouts(names, tainted=tainted)

    def approves_by_default(self, names: Collection[str], *, tainted: bool) -> bool:
        """Returns whether calls of these tools are approved by default at the deadline."""
        return self._solver.approves_by_default(names, tainted=tainted)

    def take(self, messages: Iterable[Message]) -> None:
        """Adds the messages that a step stored to the history."""
        messages = tuple(messages)
        self._history += calls_of(messages)
        self._traces += traces_of(messages)
        self._last = _last_visible(messages) or self._last
        self._heartbeats |= heartbeats_of(messages)

    def has_returned(self, name: str, output: str) -> bool:
        """Returns whether a call of a tool in this run has returned this text."""
        return Called(name, output) in self._history

    def _due(self, toolset: ToolSet, allowance: Allowance) -> tuple[str, ...]:
        """Returns required tools that were not called when the model tried to end the turn.

        Only tools that may be called now are returned.
        """
        if self._last is None or not self.loop.wants_to_end(self._end(self._last, toolset)):
            return ()
        missing = self._solver.missing(self._history, toolset.names)
        return tuple(name for name in allowance.names if name in missing)

    def _end(self, message: Message, toolset: ToolSet) -> StepEnd:
        return StepEnd(message, self._heartbeats, self._history, toolset.names, self._solver)

    def finished(self, committed: Sequence[Message], toolset: ToolSet) -> StopReason | None:
        """Returns how an earlier dispatch ended the turn; None if it did not.

        Args:
            committed: Messages that the run has stored; they are part of the history already.
            toolset: The tools that the agent has.
        """
        if not committed:
            return None
        last = committed[-1]
        if last.approval_request is not None:
            return StopReason.REQUIRES_APPROVAL
        if last.role not in (MessageRole.ASSISTANT, MessageRole.TOOL):
            # For example a heartbeat, after which the model must reply.
            return None
        now = StepRules(self._solver, tuple(self._history), traces=tuple(self._traces))
        if now.invalid(last):
            return StopReason.INVALID_TOOL_CALL
        end = self._end(last, toolset)
        stop, _ = self.loop.outcome(end, None)
        if stop is not None:
            return stop
        if now.repeats() >= REPETITIONS_ENDED:
            return StopReason.NO_PROGRESS
        # Text that does not end the turn has no heartbeat only after the last step.
        return StopReason.MAX_STEPS if end.is_text else None


@dataclass(frozen=True, slots=True)
class StepRules:
    """The rules for the calls of one reply.

    Attributes:
        solver: The rules.
        history: The calls of the run before the reply.
        granted: Ids of calls that a person approved, with the approved version of the tool.
        tainted: The context held untrusted content when the reply was made.
        traces: The steps of the run before the reply.
        loop: The strategy of the agent's loop version.
        heartbeats: Ids of the run's earlier calls that requested a heartbeat.
    """

    solver: ToolRulesSolver
    history: tuple[Called, ...]
    granted: Mapping[str, str] = field(default_factory=dict)
    tainted: bool = False
    traces: tuple[StepTrace, ...] = ()
    loop: LoopStrategy = V3
    heartbeats: frozenset[str] = frozenset()

    def asks(self, reply: ModelReply, toolset: ToolSet) -> list[ToolCall]:
        """Returns the calls of a reply that need a person's decision, as they would be run.

        Calls that the rules refuse are left out, and calls with invalid arguments. If calls run
        sequentially, a later call may still be refused after a person approved it.
        """
        before, gated, tainted = list(self.history), [], self.tainted
        for number, call in enumerate(reply.tool_calls):
            last = number == len(reply.tool_calls) - 1
            if self.sequential and number:
                verdict = self._of(call, toolset, reply.finish_reason, last=last)
            else:
                verdict = self._by_rules(call, before, toolset, reply.finish_reason, last=last)
            is_gated = self._gated(call.name, toolset, tainted=tainted)
            if is_gated:
                verdict = _with_valid_arguments(call.name, verdict, toolset)
            if verdict.refusal is not None:
                continue
            before.append(Called(call.name))
            if is_gated:
                gated.append(replace(call, arguments=verdict.arguments))
            tainted = tainted or self.taints(call, toolset)
        return gated

    @staticmethod
    def taints(call: ToolCall, toolset: ToolSet) -> bool:
        """Returns whether a call may return untrusted content."""
        return bool(toolset.untrusted_labels(call.name))

    @property
    def sequential(self) -> bool:
        """Whether calls must run one after the other, because a rule orders them."""
        return self.solver.orders

    def judge(
        self,
        call: ToolCall,
        before: Sequence[Called],
        toolset: ToolSet,
        finish: FinishReason,
        *,
        last: bool,
        tainted: bool,
    ) -> CallVerdict:
        """Decides whether a call is run.

        Args:
            call: The call.
            before: All calls of the run before it.
            toolset: The tools that the agent has.
            finish: How the reply ended.
            last: Whether this is the last call of the reply.
            tainted: Whether the context holds untrusted content before the call.
        """
        if call.id in self.granted:
            # The rules do not apply to calls that a person approved (decision 0077).
            problem = refusal(call, toolset, finish, last=last) or self._changed(call, toolset)
            return CallVerdict(call.arguments, problem)
        verdict = self._by_rules(call, before, toolset, finish, last=last)
        if not self._gated(call.name, toolset, tainted=tainted):
            return verdict
        verdict = _with_valid_arguments(call.name, verdict, toolset)
        if verdict.refusal is None:
            # An earlier call of the same reply returned unexpected untrusted content.
            why = _waits_for(call.name, toolset)
            return CallVerdict(call.arguments, f"{why}; it was not run. Call it alone.")
        return verdict

    def judge_nested(
        self, call: ToolCall, before: Sequence[Called], toolset: ToolSet, *, tainted: bool
    ) -> CallVerdict:
        """Decides whether a call that code makes is run, as if it were the next one of the reply.

        Args:
            call: The call.
            before: All earlier calls of the run, including the code's.
            toolset: The tools that the agent has.
            tainted: Whether the context or an earlier nested call holds untrusted content.
        """
        name = call.name
        if name in CODE_TOOLS:
            return CallVerdict(call.arguments, f"{CONSTRAINT} Code cannot call {name} again.")
        verdict = self._by_rules(call, before, toolset, FinishReason.TOOL_CALLS, last=False)
        if verdict.refusal is not None:
            return verdict
        if self.solver.ends(name):
            why = (
                f"{CONSTRAINT} {name} ends the turn; it cannot be called from code. Call it alone."
            )
            return CallVerdict(call.arguments, why)
        if self.solver.branches(name):
            why = (
                f"{CONSTRAINT} What {name} returns decides which tool may be called next; it cannot"
                " be called from code. Call it alone."
            )
            return CallVerdict(call.arguments, why)
        if self._gated(name, toolset, tainted=tainted):
            why = (
                f"{_waits_for(name, toolset)}, which running code cannot wait for; it was"
                " not run. Call it outside of code."
            )
            return CallVerdict(call.arguments, why)
        return verdict

    def _gated(self, name: str, toolset: ToolSet, *, tainted: bool) -> bool:
        tool = toolset.find(name)
        gates = self.solver.gates(name, tainted=tainted)
        return tool is not None and (tool.by_client or tool.requires_approval or gates)

    def _changed(self, call: ToolCall, toolset: ToolSet) -> str | None:
        tool = toolset.find(call.name)
        assert tool is not None
        if tool.version == self.granted[call.id]:
            return None
        return f"{NOT_APPROVED}: {call.name} was changed since it was asked for. It was not run."

    def _by_rules(
        self,
        call: ToolCall,
        before: Sequence[Called],
        toolset: ToolSet,
        finish: FinishReason,
        *,
        last: bool,
    ) -> CallVerdict:
        allowance = self.solver.allowed(before, toolset.names)
        problem = refusal(call, toolset.only(allowance.names), finish, last=last)
        if problem is not None:
            forbidden = call.name not in allowance.names
            return CallVerdict(
                call.arguments, problem + (self._hints(call, before) if forbidden else "")
            )
        tool = toolset.find(call.name)
        assert tool is not None
        prefilled = allowance.prefilled.get(call.name, ())
        arguments, wrong = merged(call.arguments, prefilled, tool.schema.parameters)
        if wrong is not None:
            return CallVerdict(arguments, wrong, invalid=True)
        return CallVerdict(*fitted(tool, arguments)) if tool.by_client else CallVerdict(arguments)

    def _of(
        self, call: ToolCall, toolset: ToolSet, finish: FinishReason, *, last: bool
    ) -> CallVerdict:
        """Checks a call without the tool rules."""
        problem, tool = refusal(call, toolset, finish, last=last), toolset.find(call.name)
        if problem is None and tool is not None and tool.by_client:
            return CallVerdict(*fitted(tool, runnable(call).arguments))
        return CallVerdict(call.arguments, problem)

    def repeats(self, messages: Iterable[Message] = ()) -> int:
        """Returns how often the last steps were repeated in a row with the same result.

        Args:
            messages: Messages that the current step is about to store.
        """
        return repetitions((*self.traces, *traces_of(messages)))

    def ending(
        self, messages: Sequence[Message], names: Collection[str]
    ) -> tuple[StopReason | None, str | None]:
        """Returns how a step ends the turn, or else the note that the model is sent; both optional.

        Args:
            messages: Messages that the step stores: the reply, and the returns of its calls.
            names: Names of the tools that the agent has.
        """
        last = messages[-1]
        if self.invalid(last):
            return StopReason.INVALID_TOOL_CALL, None
        repeats = self.repeats(messages)
        end = StepEnd(
            last,
            self.heartbeats | heartbeats_of(messages),
            [*self.history, *calls_of(messages)],
            list(names),
            self.solver,
        )
        stop, note = self.loop.outcome(end, self.repetition_note(repeats))
        if stop is None and repeats >= REPETITIONS_ENDED:
            return StopReason.NO_PROGRESS, None
        return stop, note

    def repetition_note(self, repeats: int) -> str | None:
        """Returns a note for the model after `repeats` repetitions; None if it needs none."""
        # Every step after the first complete cycle completes it again: the note is sent once.
        if repeats < REPETITIONS_NOTED or self.repeats() >= REPETITIONS_NOTED:
            return None
        return _REPEATED.format(repeats)

    @staticmethod
    def invalid(message: Message) -> bool:
        """Returns whether a call was refused because a rule's prefilled arguments are invalid."""
        return any(
            tool_return.provenance is Provenance.SYSTEM
            and str(called_by(tool_return).output).startswith(INVALID_PREFILLED)
            for tool_return in message.tool_returns
        )

    def _hints(self, call: ToolCall, before: Sequence[Called]) -> str:
        hints = self.solver.hints(call.name, before)
        return _HINTS + "\n".join(f"\t- {rule_element(text)}" for text in hints) if hints else ""


def _last_visible(messages: Sequence[Message]) -> Message | None:
    """Returns the last message that is not hidden from the user."""
    return next((message for message in reversed(messages) if not message.hidden), None)


def _with_valid_arguments(name: str, verdict: CallVerdict, toolset: ToolSet) -> CallVerdict:
    """Refuses a call that a person would have to decide about if its arguments are invalid."""
    tool = toolset.find(name)
    if verdict.refusal is not None or tool is None or tool.by_client:
        return verdict
    return replace(verdict, refusal=invalid_arguments(tool, verdict.arguments))


def _waits_for(name: str, toolset: ToolSet) -> str:
    tool = toolset.find(name)
    return BY_CLIENT if tool is not None and tool.by_client else NOT_APPROVED
