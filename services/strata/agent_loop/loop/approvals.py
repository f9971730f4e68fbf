"""Finds the open approval requests in a window, and settles them.

A request is open until the window holds returns of its calls. A run settles all open requests
before it calls the model. Only the run that brought the response runs the approved calls; any other
run stores results without running them.

The last response counts, unless the run of an earlier response has journalled its calls. To find
out, a run first closes the journal of that earlier run. So no call runs on two responses, and an
unanswered request never blocks a conversation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from strata.agent_loop.context.packaging import (
    DEPENDED,
    EXPIRED,
    NO_RETURN,
    NO_RETURN_IN_TIME,
    NOT_REACHED,
    NOT_WAITED_FOR,
    OUTCOME_UNKNOWN,
    UNANSWERED,
    denied,
    own_result,
)
from strata.agent_loop.domain.conversation.approvals import (
    ApprovalBinding,
    ApprovalRequest,
    ApprovalResponse,
    Decision,
    arguments_hash,
)
from strata.agent_loop.domain.conversation.messages import Message
from strata.agent_loop.domain.conversation.taint_sources import TaintSource
from strata.agent_loop.domain.model.chat import (
    FinishReason,
    ModelReply,
    ReasoningPart,
    TextPart,
    ToolCall,
)
from strata.agent_loop.domain.ports import Journal
from strata.agent_loop.domain.run.journal import JournalKey, NestedRecord
from strata.agent_loop.domain.tools import ToolResult, ToolSet
from strata.agent_loop.loop.nested_calls import joined, recorded
from strata.shared.ids import new_id
from strata.shared.messages import ToolStatus
from strata.shared.provenance import Provenance
from strata.shared.tool_returns import clip
from strata.shared.usage import Usage

# Journals are kept for a day at least.
_JOURNALLED = timedelta(hours=23)


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """An approval response in the window.

    Attributes:
        response: The response.
        run_id: The run that brought it.
        time: When it was stored; None if unknown.
        copied: It was made in the conversation that this one was forked from.
    """

    response: ApprovalResponse
    run_id: str
    time: datetime | None
    copied: bool = False


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """An approval request whose calls have no returns yet.

    Attributes:
        message: The message that holds the request.
        request: The request.
        answers: The responses, oldest first. There are several if runs ended before they started
            the calls. The last one counts.
        begun: An earlier run may have started calls.
        results: Known results of calls that an earlier run made, by call id.
        nested: Calls that the code of these calls made.
    """

    message: Message
    request: ApprovalRequest
    answers: tuple[ApprovalAnswer, ...] = ()
    begun: bool = False
    results: Mapping[str, ToolResult] = field(default_factory=dict)
    nested: tuple[NestedRecord, ...] = ()

    @property
    def answer(self) -> ApprovalResponse | None:
        """The response that counts; None if there is none."""
        return self.answers[-1].response if self.answers else None

    @property
    def answered_by(self) -> str:
        """Id of the run that brought the response; empty without a response."""
        return self.answers[-1].run_id if self.answers else ""

    def up_to(self, run_id: str) -> OpenRequest:
        """Returns the request up to the response of a run; unchanged if the run has none."""
        ids = [answer.run_id for answer in self.answers]
        if run_id not in ids:
            return self
        return replace(self, answers=self.answers[: ids.index(run_id) + 1])

    @property
    def reply(self) -> ModelReply:
        """The model's reply, with the calls as they would be run and without its counted tokens."""
        content = (p for p in self.message.parts if isinstance(p, TextPart | ReasoningPart))
        return ModelReply(tuple(content), self.request.calls, FinishReason.TOOL_CALLS, Usage())

    def granted(self, run_id: str) -> Mapping[str, str]:
        """Returns the approved calls that a run must make: tool versions by call id."""
        answer = self.answer
        if answer is None or self.answered_by != run_id:
            return {}
        versions = {bound.tool_call_id: bound.tool_version for bound in self.request.bindings}
        return {
            call.id: versions.get(call.id, "")
            for call in self.request.tool_calls
            if answer.of(call.id).approve and answer.of(call.id).client_return is None
        }

    def known_results(
        self, run_id: str, now: datetime, zone: str, toolset: ToolSet
    ) -> dict[str, ToolResult]:
        """Returns results for the calls that the run does not make, by call id.

        Args:
            run_id: The run. If it brought the response, these are the calls that were denied or
                that the client ran; otherwise all calls.
            now: The current time.
            zone: The agent's time zone.
            toolset: The known tools.
        """
        mine = self.answer is not None and self.answered_by == run_id
        results = {
            call.id: self._result_without_run(call, now, zone, mine, toolset)
            for call in self.request.tool_calls
        }
        if not mine:
            for call in self.request.waiting_calls:
                results[call.id] = self._left(call, now, zone)
        return {
            call_id: joined(result, *recorded(call_id, self.nested))
            for call_id, result in results.items()
            if result is not None
        } | ({} if mine else dict(self.results))

    def _result_without_run(
        self, call: ToolCall, now: datetime, zone: str, mine: bool, toolset: ToolSet
    ) -> ToolResult | None:
        by_client = call.id in self.request.by_client
        if self.answer is None:
            expires = self.request.expire_time
            over = expires is not None and expires <= now and not self.request.default_approve
            if by_client:
                text = NO_RETURN_IN_TIME if over else NOT_WAITED_FOR
            else:
                text = EXPIRED if over else UNANSWERED
            return own_result(call, ToolStatus.FAILED, text, now, zone)
        decision = self.answer.of(call.id)
        if decision.client_return is not None:
            result = _by_client(call, decision, now, zone, toolset, is_its_own=by_client)
            tool_return = replace(result.tool_return, returned_by=self.answer.answered_by)
            return replace(result, tool_return=tool_return)
        if not decision.approve:
            return own_result(call, ToolStatus.FAILED, denied(decision.reason), now, zone)
        if by_client:
            return own_result(call, ToolStatus.FAILED, NO_RETURN, now, zone)
        if mine:
            return None
        if not self.begun:
            return own_result(call, ToolStatus.FAILED, NOT_REACHED, now, zone)
        return own_result(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN, now, zone)

    def _left(self, call: ToolCall, now: datetime, zone: str) -> ToolResult:
        if self.answer is None or not self.begun:
            return own_result(call, ToolStatus.FAILED, DEPENDED, now, zone)
        # The run that brought the response ended before it reported whether it started this call.
        return own_result(call, ToolStatus.UNKNOWN, OUTCOME_UNKNOWN, now, zone)


def open_requests(messages: Sequence[Message]) -> list[OpenRequest]:
    """Returns the requests in a window whose calls have no returns, oldest first."""
    requests: dict[str, OpenRequest] = {}
    for message in messages:
        request, answer = message.approval_request, message.approval_response
        if request is not None:
            requests[request.approval_id] = OpenRequest(message, request)
        elif answer is not None:
            open_request = requests.get(answer.approval_id)
            if open_request is not None:
                stored_answer = ApprovalAnswer(
                    answer, message.run_id, message.create_time, message.copied
                )
                requests[answer.approval_id] = replace(
                    open_request, answers=(*open_request.answers, stored_answer)
                )
        elif requests and message.tool_returns:
            returned = {tool_return.tool_call_id for tool_return in message.tool_returns}
            settled_ids = [
                key
                for key, open_request in requests.items()
                if _ids(open_request.request) & returned
            ]
            for key in settled_ids:
                del requests[key]
    return list(requests.values())


async def decided(
    open_request: OpenRequest, journal: Journal, key: JournalKey, now: datetime
) -> OpenRequest:
    """Determines which response to a request counts.

    Args:
        open_request: The request.
        journal: Closed for the runs of earlier responses, to see whether they started calls.
        key: The current run.
        now: The current time.

    Returns:
        The request with that response as its last, and the known results of calls made on it.
    """
    for answer in open_request.answers:
        if answer.run_id == key.run_id:
            break
        if answer.copied:
            # That run belongs to another conversation and may still be running.
            return replace(open_request.up_to(answer.run_id), begun=True)
        record = await journal.close(replace(key, run_id=answer.run_id))
        # An old journal may have been cleaned up.
        forgotten = answer.time is None or now - answer.time > _JOURNALLED
        if record is None and not forgotten:
            continue
        journalled_results = record.results if record is not None else {}
        results = {
            call_id: journalled_results[call_id]
            for call_id in journalled_results.keys() & _ids(open_request.request)
        }
        nested = record.nested if record is not None else ()
        return replace(
            open_request.up_to(answer.run_id), begun=True, results=results, nested=nested
        )
    return open_request.up_to(key.run_id)


def continued_run(messages: Sequence[Message], answer: ApprovalResponse | None) -> str:
    """Returns the id of the run whose request a response answers; empty if there is none."""
    if answer is None:
        return ""
    for message in messages:
        request = message.approval_request
        if request is not None and request.approval_id == answer.approval_id:
            return message.run_id
    return ""


def settled_steps(committed: Iterable[Message]) -> int:
    """Returns how many steps of a run settled a request, without a model call."""
    return sum(bool(message.tool_calls) and message.usage is None for message in committed)


def request_for(
    calls: Sequence[ToolCall],
    gated: Sequence[ToolCall],
    toolset: ToolSet,
    timeouts: Collection[int],
    now: datetime,
    default_s: int,
    taint: tuple[TaintSource, ...] = (),
    *,
    default_approve: bool = False,
) -> ApprovalRequest:
    """Returns the approval request for a reply.

    Args:
        calls: All calls of the reply.
        gated: The calls that need a decision, as they would be run.
        toolset: The known tools.
        timeouts: Seconds that rules give the person to decide; the shortest counts.
        now: The current time.
        default_s: Seconds to decide if no rule sets a timeout.
        taint: Untrusted content in the context of the model.
        default_approve: Approve by default; ignored if the client runs one of the gated calls.
    """
    gated_by_id = {call.id: call for call in gated}
    shown = [gated_by_id.get(call.id, call) for call in calls]
    bindings = _bindings_of(shown, toolset)
    # A default decision cannot replace the return of a client's tool.
    clients = {bound.tool_call_id for bound in bindings if bound.by_client}
    return ApprovalRequest(
        approval_id=new_id("approval"),
        tool_calls=tuple(call for call in shown if call.id in gated_by_id),
        waiting_calls=tuple(call for call in shown if call.id not in gated_by_id),
        bindings=bindings,
        expire_time=now + timedelta(seconds=min(timeouts, default=default_s)),
        taint=taint,
        default_approve=default_approve and clients.isdisjoint(gated_by_id),
    )


def coming_taint(
    calls: Sequence[ToolCall], gated: Sequence[ToolCall], toolset: ToolSet
) -> tuple[TaintSource, ...]:
    """Returns the calls that fetch untrusted content before the last call that needs approval."""
    gated_ids = {call.id for call in gated}
    end = max((index for index, call in enumerate(calls) if call.id in gated_ids), default=0)
    return tuple(
        TaintSource(label, tool_name=call.name, tool_call_id=call.id)
        for call in calls[:end]
        for label in toolset.untrusted_labels(call.name)
    )


def _by_client(
    call: ToolCall,
    decision: Decision,
    now: datetime,
    zone: str,
    toolset: ToolSet,
    *,
    is_its_own: bool,
) -> ToolResult:
    tool = toolset.find(call.name)
    status = ToolStatus.FAILED if decision.client_failed else ToolStatus.OK
    text = decision.client_return or ""
    if tool is not None:
        text, _ = clip(text, tool.return_char_limit)
    result = own_result(call, status, text, now, zone)
    # The return of a client's own tool is labelled TOOL, or by its untrusted source. A return in
    # place of a tool that runs here was written by a person: USER.
    own = Provenance.TOOL if is_its_own else Provenance.USER
    label = (tool.returns_from if tool is not None else None) or own
    tool_return = replace(result.tool_return, provenance=label, taint=decision.client_taint)
    return replace(result, tool_return=tool_return)


def _ids(request: ApprovalRequest) -> set[str]:
    return {call.id for call in (*request.tool_calls, *request.waiting_calls)}


def _bindings_of(calls: Iterable[ToolCall], toolset: ToolSet) -> tuple[ApprovalBinding, ...]:
    """Returns the bindings for decisions about calls, one per call.

    Args:
        calls: The calls of a reply, in its order.
        toolset: The known tools.
    """
    pairs = ((call, toolset.find(call.name)) for call in calls)
    return tuple(
        ApprovalBinding(
            call.id,
            tool.version if tool is not None else "",
            arguments_hash(call.arguments),
            tool is not None and tool.by_client,
        )
        for call, tool in pairs
    )
