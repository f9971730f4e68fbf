"""Serves the context windows of conversations to the agent loop."""

from __future__ import annotations

from typing import Any

from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.recall.convert import log as convert_log
from strata.recall.convert import messages as convert
from strata.recall.domain.store import ForkStore, WindowStore
from strata.shared.clock import Clock
from strata.shared.ids import check_id

Context = Any


class WindowServicer(window_grpc.WindowServiceServicer):
    """Serves context windows to the agent loop."""

    def __init__(
        self, store: WindowStore, forks: ForkStore, clock: Clock, search_language: str
    ) -> None:
        self._store = store
        self._forks = forks
        self._clock = clock
        self._language = search_language

    async def OpenWindow(
        self, request: window_pb.OpenWindowRequest, context: Context
    ) -> window_pb.OpenWindowResponse:
        """Creates a window with its first messages."""
        messages = convert.to_open(request, self._clock.now())
        window = await self._store.open(
            request.conversation_id,
            request.agent_id,
            messages,
            request.search_language or self._language,
        )
        return window_pb.OpenWindowResponse(window=convert.window_to_proto(window))

    async def GetWindow(
        self, request: window_pb.GetWindowRequest, context: Context
    ) -> window_pb.GetWindowResponse:
        """Returns a window."""
        check_id(request.conversation_id, "conversation", field="conversation_id")
        window = await self._store.get(request.conversation_id)
        return window_pb.GetWindowResponse(window=convert.window_to_proto(window))

    async def BeginTurn(
        self, request: window_pb.BeginTurnRequest, context: Context
    ) -> window_pb.BeginTurnResponse:
        """Stores the inputs of a run and returns the window."""
        check_id(request.conversation_id, "conversation", field="conversation_id")
        check_id(request.agent_id, "agent", field="agent_id")
        check_id(request.run_id, "run", field="run_id")
        inputs = convert.to_messages(
            request.inputs, "inputs", self._clock.now(), run_id=request.run_id
        )
        start = await self._store.begin_turn(
            request.conversation_id,
            request.agent_id,
            request.run_id,
            request.attempt,
            inputs,
            clear=request.clear_window,
            held=convert.to_held(request),
        )
        return window_pb.BeginTurnResponse(
            window=convert.window_to_proto(start.window),
            inputs=convert.messages_to_proto(start.inputs),
            committed_steps=start.committed_steps,
            committed_messages=convert.messages_to_proto(start.committed),
            unchanged_count=start.unchanged_count,
        )

    async def CommitStep(
        self, request: window_pb.CommitStepRequest, context: Context
    ) -> window_pb.CommitStepResponse:
        """Stores one step atomically."""
        committed = await self._store.commit_step(convert.to_step(request, self._clock.now()))
        return window_pb.CommitStepResponse(
            messages=convert.messages_to_proto(committed.messages),
            revision=committed.revision,
            message_count=committed.message_count,
        )

    async def CompactWindow(
        self, request: window_pb.CompactWindowRequest, context: Context
    ) -> window_pb.CompactWindowResponse:
        """Stores a summary and replaces the window."""
        window = await self._store.compact(convert.to_compaction(request, self._clock.now()))
        return window_pb.CompactWindowResponse(window=convert.window_to_proto(window))

    async def EvictMessages(
        self, request: window_pb.EvictMessagesRequest, context: Context
    ) -> window_pb.EvictMessagesResponse:
        """Evicts archived messages from a window."""
        check_id(request.conversation_id, "conversation", field="conversation_id")
        check_id(request.agent_id, "agent", field="agent_id")
        evicted = await self._store.evict(
            request.conversation_id, request.agent_id, request.until_sequence
        )
        return window_pb.EvictMessagesResponse(evicted_count=evicted)

    async def ForkWindow(
        self, request: window_pb.ForkWindowRequest, context: Context
    ) -> window_pb.ForkWindowResponse:
        """Creates a conversation with the window that another one had at a message."""
        convert_log.check_fork(request)
        await self._forks.fork(
            request.source_conversation_id, request.conversation_id, request.until_message_id
        )
        window = await self._store.get(request.conversation_id)
        return window_pb.ForkWindowResponse(window=convert.window_to_proto(window))

    async def DeleteAgentMessages(
        self, request: window_pb.DeleteAgentMessagesRequest, context: Context
    ) -> window_pb.DeleteAgentMessagesResponse:
        """Deletes all messages of an agent."""
        check_id(request.agent_id, "agent", field="agent_id")
        deleted = await self._store.delete_agent(request.agent_id)
        response = window_pb.DeleteAgentMessagesResponse(deleted_count=deleted)
        response.delete_time.FromDatetime(self._clock.now())
        return response
