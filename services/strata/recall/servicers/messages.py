"""The gRPC servicers of recall: convert requests, call the store, convert results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.recall import convert_log, convert_search
from strata.recall import convert_messages as convert
from strata.recall.domain.retention import RetentionSettings
from strata.recall.domain.store import (
    ForkStore,
    ImageStore,
    MessageStore,
    PinStore,
    WindowStore,
)
from strata.recall.domain.summary_expansion import expand
from strata.recall.message_search import MessageSearch
from strata.shared.clock import Clock
from strata.shared.db import decode_page_token, encode_page_token, page_limit
from strata.shared.ids import check_id
from strata.shared.replies import as_text

Context = Any
MAX_PAGE_SIZE = 500
EXPORT_PAGE = 200


class MessageServicer(message_grpc.MessageServiceServicer):
    """Reads and searches messages."""

    def __init__(
        self,
        store: MessageStore,
        images: ImageStore,
        pins: PinStore,
        search: MessageSearch,
        retention: RetentionSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._images = images
        self._pins = pins
        self._search = search
        self._retention = retention
        self._clock = clock

    async def GetMessage(
        self, request: message_pb.GetMessageRequest, context: Context
    ) -> message_pb.GetMessageResponse:
        """Returns one message."""
        check_id(request.message_id, "message", field="message_id")
        message = await self._store.get(request.message_id)
        return message_pb.GetMessageResponse(message=convert.message_to_proto(message))

    async def GetImage(
        self, request: message_pb.GetImageRequest, context: Context
    ) -> message_pb.GetImageResponse:
        """Returns the bytes of an image."""
        image = await self._images.get(convert.to_image_id(request))
        return message_pb.GetImageResponse(media_type=image.media_type, data=image.data)

    async def ListMessages(
        self, request: message_pb.ListMessagesRequest, context: Context
    ) -> message_pb.ListMessagesResponse:
        """Lists messages of a conversation or an agent."""
        wanted = convert.to_filter(request)
        scope = f"ListMessages {wanted}"
        cursor = decode_page_token(scope, request.page_token, wanted.cursor_kinds())
        page = await self._store.page(
            wanted, page_limit(request.page_size, maximum=MAX_PAGE_SIZE), cursor
        )
        token = encode_page_token(scope, page.next_cursor) if page.next_cursor else ""
        messages = convert.messages_to_proto(page.messages)
        if request.send_message_as_text:
            messages = [shown for one in messages if (shown := as_text(one)) is not None]
        return message_pb.ListMessagesResponse(messages=messages, next_page_token=token)

    async def SearchMessages(
        self, request: message_pb.SearchMessagesRequest, context: Context
    ) -> message_pb.SearchMessagesResponse:
        """Searches the messages of an agent."""
        answer = await self._search.search(convert_search.to_search(request))
        # In a thread, since converting a hundred long messages would block the event loop.
        return await asyncio.to_thread(convert_search.answer_to_proto, answer)

    async def PinMessage(
        self, request: message_pb.PinMessageRequest, context: Context
    ) -> message_pb.PinMessageResponse:
        """Pins a message, so that it stays in the window."""
        check_id(request.message_id, "message", field="message_id")
        message = await self._pins.set(request.message_id, pinned=True)
        return message_pb.PinMessageResponse(message=convert.message_to_proto(message))

    async def UnpinMessage(
        self, request: message_pb.UnpinMessageRequest, context: Context
    ) -> message_pb.UnpinMessageResponse:
        """Unpins a message."""
        check_id(request.message_id, "message", field="message_id")
        message = await self._pins.set(request.message_id, pinned=False)
        return message_pb.UnpinMessageResponse(message=convert.message_to_proto(message))

    async def ExpandSummary(
        self, request: message_pb.ExpandSummaryRequest, context: Context
    ) -> message_pb.ExpandSummaryResponse:
        """Returns the messages that a summary replaces."""
        expanded = await expand(self._store, convert_log.to_expansion(request))
        return convert_log.expanded_to_proto(expanded)

    async def ExportMessages(
        self, request: message_pb.ExportMessagesRequest, context: Context
    ) -> AsyncIterator[message_pb.ExportMessagesResponse]:
        """Streams all messages, page by page, with one page in memory."""
        wanted = convert_log.to_whole(request)
        page = await self._store.page(wanted, EXPORT_PAGE, None)
        while page.messages:
            yield message_pb.ExportMessagesResponse(
                messages=convert.messages_to_proto(page.messages)
            )
            if page.next_cursor is None:
                return
            page = await self._store.page(wanted, EXPORT_PAGE, page.next_cursor)

    async def GetRetention(
        self, request: message_pb.GetRetentionRequest, context: Context
    ) -> message_pb.GetRetentionResponse:
        """Returns for how long the project keeps messages."""
        kept = await self._retention.get()
        return message_pb.GetRetentionResponse(retention=convert_log.retention_to_proto(kept))

    async def SetRetention(
        self, request: message_pb.SetRetentionRequest, context: Context
    ) -> message_pb.SetRetentionResponse:
        """Sets for how long the project keeps messages."""
        kept = await self._retention.set(convert_log.to_days(request), self._clock.now())
        return message_pb.SetRetentionResponse(retention=convert_log.retention_to_proto(kept))


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
        )
        return window_pb.BeginTurnResponse(
            window=convert.window_to_proto(start.window),
            inputs=convert.messages_to_proto(start.inputs),
            committed_steps=start.committed_steps,
            committed_messages=convert.messages_to_proto(start.committed),
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
