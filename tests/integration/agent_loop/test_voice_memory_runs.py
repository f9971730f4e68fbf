"""Voice memory runs with a crash at each call: a range is stored and evicted once."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from doubles.script import Call, ModelCall, Reply, Step
from inner_services import InnerServices
from mortal_loop import Died, Mortal, Sink
from strata.agent_loop.domain.run.runs import RunRequest, TranscriptRange
from strata.agent_loop.domain.tools import ToolBatch, ToolEvent
from strata.agent_loop.loop.turn import Turn
from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.archival.v1 import passage_service_pb2 as passage_pb
from strata.api.core_memory.v1 import block_service_pb2 as block_pb
from strata.shared.ids import default_conversation_id, new_id
from strata.shared.stop_reasons import StopReason

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("running_services", ["inprocess"], indirect=True, scope="package"),
]


def answer(call: ModelCall) -> Step:
    """Replies for a voice agent and its memory agent; no two calls store the same text."""
    names = {tool["function"]["name"] for tool in call.body.get("tools", ())}
    if "send_message" in names:
        return Reply(calls=(Call("send_message", {"message": "Yes."}),))
    if names == {"store_memories"}:
        context = f"Attempt {new_id('x')}."
        memory = {"start_index": 0, "end_index": 1, "context": context}
        return Reply(calls=(Call("store_memories", {"memories": [memory]}),))
    if "finish_rethinking_memory" in names:
        return Reply(calls=(Call("finish_rethinking_memory"),))
    return Reply(calls=(Call("rethink_user_memory", {"new_memory": "Rows."}),))


class Calls:
    """Counts the calls of an attempt, and simulates a crash at one of them.

    Attributes:
        last: Number of the call at which the process dies; 0 for none.
        after: The call has its effect before the process dies.
    """

    def __init__(self, *, after: bool) -> None:
        self.after = after
        self.last = 0
        self.count = 0

    def begin(self) -> bool:
        """Counts a call; returns whether the process dies after it."""
        self.count += 1
        if self.count != self.last:
            return False
        if not self.after:
            raise Died
        return True


class DyingPort:
    """A real port whose process may die before or after each call."""

    def __init__(self, inner: Any, calls: Calls) -> None:
        self._inner = inner
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            dies = self._calls.begin()
            result = await method(*args, **kwargs)
            if dies:
                raise Died
            return result

        return call


class DyingTools(DyingPort):
    """The executor of tools, whose calls are streams."""

    async def execute(self, batch: ToolBatch) -> AsyncGenerator[ToolEvent, None]:
        dies = self._calls.begin()
        async for event in self._inner.execute(batch):
            yield event
        if dies:
            raise Died


async def archive_through_deaths(services: InnerServices, mortal: Mortal, *, after: bool) -> int:
    """Runs a memory run whose attempts die at successive calls; returns their number."""
    agent = await services.make_agent(
        type=pb.AGENT_TYPE_VOICE_CONVO, enable_sleeptime=True, without_initial_messages=True
    )
    services.model.respond(answer)
    await services.run(agent, "I row.")
    await services.run(agent, "On the river.")
    request = RunRequest(
        run_id=new_id("run"),
        attempt=0,
        agent_id=agent.memory_agent_id,
        conversation_id=default_conversation_id(agent.memory_agent_id),
        transcript=TranscriptRange(agent.id, agent.default_conversation_id, 0, 3),
    )
    calls = Calls(after=after)
    ports = replace(
        mortal.ports,
        recall=DyingPort(mortal.ports.recall, calls),
        journal=DyingPort(mortal.ports.journal, calls),
        tools=DyingTools(mortal.ports.tools, calls),
    )
    while True:
        calls.count, calls.last = 0, calls.last + 1
        request = replace(request, attempt=request.attempt + 1)
        sink = Sink()
        try:
            await Turn(ports, request, sink).run()
        except (Died, BaseExceptionGroup):
            continue
        break
    assert sink.stop_reason is StopReason.END_TURN
    # When a gateway that has lost the end of the run repeats it, nothing changes.
    calls.last = 0
    await Turn(ports, replace(request, attempt=request.attempt + 1), Sink()).run()

    passages = await services.passages.ListPassages(
        passage_pb.ListPassagesRequest(agent_id=agent.id)
    )
    [passage] = [passage.text for passage in passages.passages]
    assert re.fullmatch(r"Attempt x-\S+\.\n\nuser: I row\.\nassistant: Yes\.", passage)
    window = (await services.window(agent)).messages
    # A message, a call and its return are left of the two turns.
    assert [message.sequence for message in window] == [0, 4, 5, 6]
    block = block_pb.GetBlockRequest(agent_id=agent.id, label="human")
    assert (await services.blocks.GetBlock(block)).block.value == "Rows."
    return request.attempt - 2


@pytest.mark.parametrize("after", [False, True], ids=["before-calls", "after-calls"])
async def test_a_range_is_archived_once_after_a_crash_at_any_call(
    services: InnerServices, mortal: Mortal, after: bool
) -> None:
    assert await archive_through_deaths(services, mortal, after=after) >= 8
