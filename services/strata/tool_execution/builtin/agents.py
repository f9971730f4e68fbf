"""Tools that send messages to other agents, through the gateway's public services (decision 0090).

A message starts a run of the other agent. The run's request id is derived from the idempotency key
of the call, so a call that is repeated after a crash finds the run that it started before.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata.api.agent_loop.v1 import agent_service_pb2 as agent_pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc as agent_grpc
from strata.api.common.v1 import message_pb2 as common
from strata.api.common.v1 import run_event_pb2 as events
from strata.api.gateway.v1 import run_service_pb2 as run_pb
from strata.api.gateway.v1 import run_service_pb2_grpc as run_grpc
from strata.protocol.errors import Reason, ResourceExhaustedError, StrataError, UnavailableError
from strata.protocol.stream_completion import complete_in_background
from strata.shared.agent_messages import opening
from strata.shared.blank_text import is_blank
from strata.shared.convert.messages import labels_to_proto, taint_from_proto
from strata.shared.ids import check_id
from strata.shared.member_labels import labels_of, position_of, speaker_name
from strata.shared.replies import words_of
from strata.shared.space_shares import share_of_each
from strata.shared.tool_catalogue import ASK_MEMBERS, HAND_OVER
from strata.shared.tool_returns import FUNCTION_RETURN_CHAR_LIMIT
from strata.shared.tool_schemas import parameters, text
from strata.tool_execution.builtin.schemas import builtin
from strata.tool_execution.clients.peers import LostAnswerError, backoff
from strata.tool_execution.domain.tools import (
    CallingAgent,
    CallingGroup,
    Output,
    ToolCall,
    ToolError,
    ToolType,
)

Arguments = Mapping[str, Any]

MAX_RECIPIENTS = 50
_TEMPORARY_REFUSALS = frozenset({Reason.QUOTA_EXCEEDED, Reason.OVERLOADED})
_ONLY_IN_GROUPS = "This tool can only be called while its group answers a message."

_UNANSWERED = {
    events.STOP_REASON_REQUIRES_APPROVAL: "It wants to do something that a person has to approve,"
    " and continues after that.",
    events.STOP_REASON_CANCELLED: "It was stopped before it answered.",
    events.STOP_REASON_NO_PROGRESS: "It was stopped because it repeated the same step without"
    " progress.",
}
_ANSWERED = frozenset(
    {
        events.STOP_REASON_END_TURN,
        events.STOP_REASON_TOOL_RULE,
        events.STOP_REASON_MAX_STEPS,
    }
)

MAX_TAGS = 10

_MESSAGE = text("What to say, self-contained: the other agent sees nothing of your conversation.")
_OTHER = text("Id of the other agent, agent-...")


def _tags(description: str) -> dict[str, object]:
    return {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": MAX_TAGS,
        "description": description,
    }


SEND_AND_WAIT = builtin(
    name="send_message_to_agent_and_wait_for_reply",
    description=(
        "Ask another agent of this server a question, or to do a task, and wait until it answers."
        " It learns who you are. Returns its reply, or the reason why there is none yet; a message "
        "that the agent still works on need not be sent again."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(["message", "other_agent_id"], message=_MESSAGE, other_agent_id=_OTHER),
)

SEND_TO_TAGGED = builtin(
    name="send_message_to_agents_matching_tags",
    description=(
        "Ask all other agents that have certain tags the same question, and wait for their "
        "answers. They learn who you are. Returns one reply per agent."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(
        ["message", "match_all", "match_some"],
        message=_MESSAGE,
        match_all=_tags("Tags that an agent must all have; may be empty."),
        match_some=_tags("Tags of which an agent must have one at least; may be empty."),
    ),
)

SEND_ASYNC = builtin(
    name="send_message_to_agent_async",
    description=(
        "Tell another agent something without waiting for an answer. It learns who you are and "
        "works on its own; if it answers, you get the answer later as a message."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(["message", "other_agent_id"], message=_MESSAGE, other_agent_id=_OTHER),
)

# The agent loop adds the members of the group to the descriptions, and to the schema of the
# argument that names one.
SEND_TO_GROUP = builtin(
    name=ASK_MEMBERS,
    description=(
        "Ask all other agents of this group the same question and wait for their answers. They "
        "learn who you are, and see only this message of your conversation. Returns one reply per"
        " agent. Only you talk to the user: use the answers in your own reply."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(["message"], message=_MESSAGE),
)

HAND_CONVERSATION_OVER = builtin(
    name=HAND_OVER,
    description=(
        "Hand this conversation over to another agent of this group, if that one is better suited"
        " to answer. It sees the messages so far, answers the user now and keeps the conversation"
        " from then on. Your turn ends with this call; do not answer the user yourself as well."
    ),
    kind=ToolType.MULTI_AGENT,
    parameters=parameters(
        ["agent", "message"],
        agent=text("The agent that takes over."),
        message=text("What the other agent should know or do; may be empty."),
    ),
)

AGENT_TOOLS = (
    SEND_AND_WAIT,
    SEND_TO_TAGGED,
    SEND_ASYNC,
    SEND_TO_GROUP,
    HAND_CONVERSATION_OVER,
)


@dataclass(slots=True)
class _Answer:
    """Collects the reply of an agent.

    Attributes:
        replies: Its messages so far.
        labels: Provenance of these messages.
        end: How its run ended; None while it is running.
        began: Whether an event of its run has arrived.
    """

    replies: list[str] = field(default_factory=list)
    labels: set[common.Provenance.ValueType] = field(default_factory=set)
    end: events.RunFinished | None = None
    began: bool = False

    @property
    def taint(self) -> tuple[str, ...]:
        """Labels of the untrusted content in the replies."""
        return taint_from_proto(self.labels)

    @property
    def failed(self) -> bool:
        if self.end is None:
            return False
        return self.end.stop_reason not in {*_ANSWERED, events.STOP_REASON_REQUIRES_APPROVAL}

    def for_model(self, agent_id: str, name: str = "") -> dict[str, Any]:
        """Returns the tool return: the agent, the status, the reply, and a note if needed."""
        who = {"agent_id": agent_id, **({"agent_name": name} if name else {})}
        if self.end is None:
            status = "working"
            why = "It is still at work; what you said has reached it and need not be sent again."
        elif self.end.stop_reason in _ANSWERED:
            status = "answered"
            why = "" if self.replies else "It ended its turn without a reply."
        else:
            status = "failed" if self.failed else "waiting"
            why = _UNANSWERED.get(self.end.stop_reason) or (
                f"It could not answer: {self.end.error.message}"
            )
        answer = {**who, "status": status}
        if not self.failed:
            answer["reply"] = "\n\n".join(self.replies)
        return {**answer, "note": why} if why else answer


class AgentTools:
    """Runs the tools that send messages to other agents.

    Args:
        runs: Run service of the gateway.
        agents: Agent service of the agent loop.
        wait_s: Seconds to wait for an answer.
    """

    names = frozenset(
        {
            SEND_AND_WAIT.name,
            SEND_TO_TAGGED.name,
            SEND_ASYNC.name,
            SEND_TO_GROUP.name,
            HAND_CONVERSATION_OVER.name,
        }
    )

    def __init__(
        self,
        runs: run_grpc.RunServiceStub,
        agents: agent_grpc.AgentServiceStub,
        *,
        wait_s: float,
    ) -> None:
        self._runs = runs
        self._agents = agents
        self._wait_s = wait_s

    async def run(self, call: ToolCall, arguments: dict[str, Any], caller: CallingAgent) -> Output:
        """Sends the message.

        Raises:
            ToolError: No agent answered, or no agent matches.
            StrataError: The gateway refused the request.
        """
        if call.name == HAND_CONVERSATION_OVER.name:
            return _handed_over(arguments["agent"], caller.group)
        if is_blank(arguments["message"]):
            raise ToolError("message must contain text that is not blank. Nothing was sent.")
        if call.name == SEND_TO_GROUP.name:
            return await self._to_group(call, arguments["message"], caller)
        if call.name == SEND_TO_TAGGED.name:
            return await self._to_tagged(call, arguments, caller)
        other = check_id(arguments["other_agent_id"], "agent", field="other_agent_id")
        if call.name == SEND_ASYNC.name:
            return await self._without_waiting(call, other, arguments["message"], caller)
        message = await self._message(arguments["message"], caller, waits=True)
        answer = await self._ask(call, other, message)
        if answer.failed:
            raise ToolError(
                "The agent could not answer.", answer.for_model(other), taint=answer.taint
            )
        return Output(answer.for_model(other), taint=answer.taint)

    async def _without_waiting(
        self, call: ToolCall, other: str, text: str, caller: CallingAgent
    ) -> Output:
        message = await self._message(text, caller, waits=False)
        started = await self._runs.StartRun(
            run_pb.StartRunRequest(
                request_id=_request_id(call, other), agent_id=other, messages=[message]
            )
        )
        return Output(
            {
                "agent_id": other,
                "run_id": started.run.id,
                "message": "Sent. If the agent answers, you will get a later message.",
            }
        )

    async def _to_tagged(
        self, call: ToolCall, arguments: Arguments, caller: CallingAgent
    ) -> Output:
        recipients = await self._tagged(arguments["match_all"], arguments["match_some"])
        recipients.pop(caller.agent_id, None)
        if not recipients:
            raise ToolError("No other agent has these tags.")
        if len(recipients) > MAX_RECIPIENTS:
            raise ToolError(
                f"More than {MAX_RECIPIENTS} agents have these tags. Nothing was sent; name more"
                " tags."
            )
        message = await self._message(arguments["message"], caller, waits=True)
        return await self._ask_all(call, recipients, message)

    async def _to_group(self, call: ToolCall, text: str, caller: CallingAgent) -> Output:
        group = caller.group
        if not group.agent_ids:
            raise ToolError(_ONLY_IN_GROUPS)
        members = dict(zip(group.agent_ids, labels_of(group.names), strict=True))
        message = await self._message(text, caller, waits=True)
        return await self._ask_all(call, members, message, group.id)

    async def _ask_all(
        self,
        call: ToolCall,
        agents: Mapping[str, str],
        message: common.MessageInput,
        group_id: str = "",
    ) -> Output:
        """Asks several agents concurrently and returns one result per agent.

        Args:
            call: The tool call.
            agents: Agent names by agent id.
            message: The message to send.
            group_id: The group in whose run the call is made; empty if none.

        Raises:
            ToolError: No agent answered.
        """

        async def ask(agent_id: str) -> _Answer | StrataError:
            try:
                return await self._ask(call, agent_id, message, group_id)
            except StrataError as error:
                return error

        tasks = [asyncio.create_task(ask(agent_id)) for agent_id in agents]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        results = [
            _unanswered(agent_id, name, answer)
            if isinstance(answer, StrataError)
            else answer.for_model(agent_id, name)
            for (agent_id, name), answer in zip(agents.items(), answers, strict=True)
        ]
        labels = {
            label for answer in answers if isinstance(answer, _Answer) for label in answer.taint
        }
        taint = tuple(sorted(labels))
        ends = {result["status"] for result in results}
        if ends <= {"failed", "unknown"}:
            unknown = "unknown" in ends
            raise ToolError("No agent could answer.", results, unknown=unknown, taint=taint)
        return Output(shortened_replies(results, FUNCTION_RETURN_CHAR_LIMIT), taint=taint)

    async def _ask(
        self, call: ToolCall, agent_id: str, message: common.MessageInput, group_id: str = ""
    ) -> _Answer:
        """Sends the message and collects the answer; retries while the gateway is unavailable.

        A message to a group is also retried when the gateway is overloaded or over its quota,
        because a group sends many messages at once.
        """
        request = run_pb.SendMessageRequest(
            request_id=_request_id(call, agent_id),
            agent_id=agent_id,
            group_id=group_id,
            messages=[message],
            stream_tokens=False,
            # `words_of` needs the calls to separate replies from reasoning.
            send_message_as_text=False,
        )
        answer = _Answer()
        arrived = away = False
        refused: ResourceExhaustedError | None = None
        pauses = backoff(self._wait_s)
        try:
            async with asyncio.timeout(self._wait_s):
                while True:
                    answer, away, refused = _Answer(), False, None
                    try:
                        await self._follow(request, answer)
                    except UnavailableError as error:
                        arrived, away = arrived or answer.began, True
                        if not await pauses.wait(error):
                            break
                    except ResourceExhaustedError as error:
                        refused = error
                        waits = group_id and error.reason in _TEMPORARY_REFUSALS
                        if not waits or not await pauses.wait(error):
                            raise
                    else:
                        return answer
        except TimeoutError:
            if refused is not None and not away and not answer.began:
                raise refused from None
        if away and not arrived:
            # The message was sent, perhaps more than once, and no event of its run has arrived.
            raise LostAnswerError("The gateway service gave no answer.")
        return answer

    async def _follow(self, request: run_pb.SendMessageRequest, answer: _Answer) -> None:
        stream = self._runs.SendMessage(request)
        try:
            async for response in stream:
                event = response.event
                answer.began = True
                if event.HasField("message_stored"):
                    message = event.message_stored.message
                    words = words_of(message)
                    answer.replies += words
                    answer.labels.update(message.provenance if words else ())
                elif event.HasField("run_finished"):
                    answer.end = event.run_finished
                    answer.labels.update(answer.end.taint)
                    return
        finally:
            if answer.end is not None:
                complete_in_background(stream)
            else:
                stream.cancel()
        raise UnavailableError("The stream of a run ended before the run.")

    async def _tagged(
        self, match_all: Collection[str], match_some: Collection[str]
    ) -> dict[str, str]:
        """Returns the names by id of the agents with these tags.

        Stops reading above `MAX_RECIPIENTS`, so that the caller can refuse.
        """
        if not match_all and not match_some:
            raise ToolError("Name a tag in match_all or match_some.")
        queries = [[*match_all, tag] for tag in match_some] or [list(match_all)]
        names: dict[str, str] = {}
        for tags in queries:
            request = agent_pb.ListAgentsRequest(
                tags=sorted(set(tags)), page_size=MAX_RECIPIENTS + 2, names_only=True
            )
            # Long descriptions make pages shorter than requested. One more than the recipients is
            # the caller itself.
            while len(names) <= MAX_RECIPIENTS + 1:
                page = await self._agents.ListAgents(request)
                names |= {agent.id: agent.name for agent in page.agents}
                request.page_token = page.next_page_token
                if not request.page_token:
                    break
        return names

    async def _message(
        self, text: str, caller: CallingAgent, *, waits: bool
    ) -> common.MessageInput:
        response = await self._agents.GetAgent(agent_pb.GetAgentRequest(agent_id=caller.agent_id))
        name = response.agent.name
        how = (
            "It waits for your answer: what you reply in this turn is sent to it."
            if waits
            else "It does not wait, and your reply is not sent to it. If it needs an answer, send"
            f" it one with {SEND_ASYNC.name}, if you have that tool."
        )
        first_line = opening(name, caller.agent_id, how)
        return common.MessageInput(
            name=speaker_name(name, caller.agent_id),
            parts=[common.Part(text=common.TextPart(text=f"{first_line}\n\n{text}"))],
            taint=labels_to_proto(caller.taint),
        )


def _handed_over(agent: str, group: CallingGroup) -> Output:
    """Returns the tool return of a handover; the handover happens when the turn has ended."""
    if not group.agent_ids:
        raise ToolError(_ONLY_IN_GROUPS)
    labels = labels_of(group.names)
    position = position_of(agent, group.agent_ids, group.names)
    if position is None:
        names = ", ".join(f'"{label}"' for label in labels)
        raise ToolError(f"agent must be one of: {names}. The conversation stays with you.")
    return Output(f'The conversation is handed over to "{labels[position]}".')


def shortened_replies(results: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Returns results whose longest replies are truncated so that all results fit into a return.

    Otherwise the return would be truncated as a text, without the agents at its end.

    Args:
        results: The results, in order; those with an answer have a ``reply``.
        limit: Maximum characters of the results as JSON.
    """
    empty = [{**result, "reply": ""} if "reply" in result else result for result in results]
    space = limit - len(_json(empty))
    sizes = [len(_json(result["reply"])) - 2 for result in results if "reply" in result]
    share = share_of_each(sizes, space)
    return [
        {**result, "reply": _cut_reply(result["reply"], share)} if "reply" in result else result
        for result in results
    ]


def _cut_reply(reply: str, max_bytes: int) -> str:
    kept_chars, shortened = len(reply), reply
    while kept_chars and (size := len(_json(shortened)) - 2) > max_bytes:
        kept_chars = max(0, kept_chars - max(size - max_bytes, kept_chars // 8))
        shortened = f"{reply[:kept_chars]}... [truncated {len(reply) - kept_chars} chars]"
    return shortened


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unanswered(agent_id: str, name: str, error: StrataError) -> dict[str, Any]:
    answer = {"agent_id": agent_id, "agent_name": name}
    if isinstance(error, LostAnswerError):
        note = f"{error.message} It is unknown whether your message has reached it."
        return {**answer, "status": "unknown", "note": note}
    return {**answer, "status": "failed", "note": error.message}


def _request_id(call: ToolCall, agent_id: str) -> str:
    """Returns a stable request id. It is a hash because keys and call ids may be long."""
    digest = hashlib.sha256(f"{call.key} {agent_id}".encode())
    return f"agents-{digest.hexdigest()}"
