"""One turn: begin, steps, end (blueprint §0.5, the V3 loop; architecture §4 and §5).

The model may answer in text, which ends the turn, or ask for tools, after which it is asked
again. Each step is stored whole or not at all; a call is stored with its return or not at all.
"""

from __future__ import annotations

import asyncio

from strata.agent_loop.domain.agents import Agent, merge_tools
from strata.agent_loop.domain.events import (
    ApprovalRequested,
    MessageStored,
    RunFinished,
    RunStarted,
)
from strata.agent_loop.domain.messages import Message, MessageRole, Provenance
from strata.agent_loop.domain.runs import Outcome, RunRequest, StopReason
from strata.agent_loop.domain.taint import taint_of_messages
from strata.agent_loop.domain.tools import FILE_TOOLS, ToolSet
from strata.agent_loop.loop.approvals import continued_run, settled_steps
from strata.agent_loop.loop.failures import (
    StepFailedError,
    ends_run,
    from_model_error,
    from_room_error,
    out_of_time,
)
from strata.agent_loop.loop.ports import BegunTurn, BoundModel, EventSink, MemorySection, Ports
from strata.agent_loop.loop.ruling import TurnRules
from strata.agent_loop.loop.steps import Steps, key_of, shows_line_numbers
from strata.agent_loop.models.domain import Usage
from strata.agent_loop.models.errors import ModelError
from strata.shared.errors import StrataError
from strata.shared.ids import new_id
from strata.shared.logs import get_logger

_log = get_logger(__name__)


class Turn:
    """One dispatch of a run.

    Args:
        ports: What it is wired to.
        request: What to do.
        sink: Where its events go.
    """

    def __init__(self, ports: Ports, request: RunRequest, sink: EventSink) -> None:
        self._ports = ports
        self._request = request
        self._sink = sink
        self._key = key_of(request)
        self._earlier_usage = Usage()
        self._steps: Steps | None = None

    async def run(self) -> None:
        """Runs the turn to its `RunFinished`.

        Cancelling stops the model and the tools. If tools were running, their results, or
        returns that say "cancelled", are stored with the reply that asked for them.

        Raises:
            StrataError: The turn was not ended: the agent is unknown, a newer attempt has taken
                over, or a room cannot be reached, so that another dispatch may go on.
        """
        agent = await self._ports.agents.load(self._key.agent_id, self._key.conversation_id)
        bound = await self._bind(agent)
        parts = await self._begin(agent, bound)
        begun = parts[0]
        try:
            async with asyncio.timeout(self._remaining()) as limit:
                stop, failure = await self._drive(agent, bound, parts), None
        except StepFailedError as failed:
            stop, failure = failed.stop_reason, failed.failure
        except StrataError as error:
            if not ends_run(error):
                raise
            _log.warning("a room refused the turn", run_id=self._key.run_id, error=repr(error))
            stop, failure = StopReason.ERROR, from_room_error(error).failure
        except TimeoutError:
            if not limit.expired():
                raise
            stop, failure = out_of_time().stop_reason, out_of_time().failure
        usage, count = self._earlier_usage, begun.committed_steps
        count -= settled_steps(begun.committed_messages)
        if self._steps is not None:
            usage = usage + self._steps.usage
            count = max(count, self._steps.step - self._steps.settled)
        taint = taint_of_messages(begun.window.messages)
        if self._steps is not None:
            taint = self._steps.taint
        await self._sink.emit(RunFinished(Outcome(stop, usage, count, failure, taint)))

    async def _bind(self, agent: Agent) -> BoundModel | ModelError:
        try:
            return await self._ports.models.bind(agent.model, agent.model_keys)
        except ModelError as error:
            # Told once the user's message is stored.
            return error

    async def _begin(
        self, agent: Agent, bound: BoundModel | ModelError
    ) -> tuple[BegunTurn, MemorySection | StrataError, ToolSet | StrataError]:
        numbered = isinstance(bound, BoundModel) and shows_line_numbers(agent, bound)
        begun, section, toolset = await asyncio.gather(
            self._ports.recall.begin_turn(self._key, self._inputs()),
            self._ports.memory.compile(agent, line_numbers=numbered),
            # With the file tools, which are offered if core memory knows of folders.
            self._ports.tools.resolve(merge_tools(agent.tools, FILE_TOOLS), skip_missing=True),
            return_exceptions=True,
        )
        for found in (begun, section, toolset):
            if isinstance(found, BaseException) and not isinstance(found, StrataError):
                raise found
        if isinstance(begun, BaseException):
            raise begun
        await self._tell_begun(begun)
        return begun, section, toolset  # type: ignore[return-value]

    async def _tell_begun(self, begun: BegunTurn) -> None:
        ids = tuple(message.id for message in begun.inputs)
        await self._sink.emit(
            RunStarted(self._key.agent_id, self._key.conversation_id, self._key.attempt, ids)
        )
        for message in begun.committed_messages:
            if not message.hidden:
                await self._sink.emit(MessageStored(message))
            if message.usage is not None:
                self._earlier_usage += message.usage

    async def _drive(
        self,
        agent: Agent,
        bound: BoundModel | ModelError,
        parts: tuple[BegunTurn, MemorySection | StrataError, ToolSet | StrataError],
    ) -> StopReason:
        begun, section, toolset = parts
        for found in (section, toolset):
            if isinstance(found, StrataError):
                raise found
        assert isinstance(section, MemorySection)
        assert isinstance(toolset, ToolSet)
        earlier = continued_run(begun.window.messages, self._request.approval)
        before = [m for m in begun.window.messages if earlier and m.run_id == earlier]
        rules = TurnRules(agent, (*before, *begun.committed_messages))
        offered = toolset.offered(agent.tools, folders=section.has_folders)
        finished = rules.finished(begun.committed_messages, offered)
        if finished is StopReason.REQUIRES_APPROVAL:
            asked = begun.committed_messages[-1].approval_request
            assert asked is not None
            await self._sink.emit(ApprovalRequested(asked))
        if finished is not None:
            return finished
        if isinstance(bound, ModelError):
            raise from_model_error(bound)
        self._steps = Steps(
            self._ports, self._request, self._sink, agent, bound, begun, toolset, rules
        )
        return await self._steps.run(section)

    def _remaining(self) -> float | None:
        if self._request.deadline is None:
            return None
        return (self._request.deadline - self._ports.clock.now()).total_seconds()

    def _inputs(self) -> list[Message]:
        answer = [
            Message(
                id=new_id("message"),
                role=MessageRole.APPROVAL,
                parts=(given,),
                conversation_id=self._key.conversation_id,
                agent_id=self._key.agent_id,
                run_id=self._key.run_id,
                provenance=(Provenance.SYSTEM if given.by_default else Provenance.USER,),
            )
            for given in (self._request.approval,)
            if given is not None
        ]
        return answer + [
            Message(
                id=new_id("message"),
                role=given.role,
                parts=given.parts,
                conversation_id=self._key.conversation_id,
                agent_id=self._key.agent_id,
                name=given.name,
                run_id=self._key.run_id,
                provenance=(self._speaker(given.role), *given.taint),
                client_message_id=given.client_message_id,
            )
            for given in self._request.inputs
        ]

    def _speaker(self, role: MessageRole) -> Provenance:
        if self._request.sender_agent_id:
            return Provenance.MODEL
        return _SPEAKERS.get(role, Provenance.USER)


_SPEAKERS = {MessageRole.SYSTEM: Provenance.SYSTEM, MessageRole.ASSISTANT: Provenance.MODEL}
