"""Serves messages: reads, searches, pins and exports them, and sets their retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.recall.convert import log as convert_log
from strata.recall.convert import messages as convert
from strata.recall.convert import search as convert_search
from strata.recall.domain.retention import RetentionSettings
from strata.recall.domain.store import ImageStore, MessageStore, PinStore
from strata.recall.domain.summary_expansion import expand
from strata.recall.search.message_search import MessageSearch
from strata.shared.clock import Clock
from strata.shared.db import decode_page_token, encode_page_token, page_limit
from strata.shared.ids import check_id
from strata.shared.replies import as_text

Context = Any
MAX_PAGE_SIZE = 500
EXPORT_PAGE = 200
# A thread takes longer to answer than the conversion of so few hits with their neighbours.
_CONVERTED_AT_ONCE = 10


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
        message_filter = convert.to_filter(request)
        scope = f"ListMessages {message_filter}"
        cursor = decode_page_token(scope, request.page_token, message_filter.cursor_kinds())
        page = await self._store.page(
            message_filter, page_limit(request.page_size, maximum=MAX_PAGE_SIZE), cursor
        )
        token = encode_page_token(scope, page.next_cursor) if page.next_cursor else ""
        # In a thread, since converting a page of long messages would block the event loop.
        messages = await asyncio.to_thread(convert.messages_to_proto, page.messages)
        if request.send_message_as_text:
            messages = [
                text_message for one in messages if (text_message := as_text(one)) is not None
            ]
        return message_pb.ListMessagesResponse(messages=messages, next_page_token=token)

    async def SearchMessages(
        self, request: message_pb.SearchMessagesRequest, context: Context
    ) -> message_pb.SearchMessagesResponse:
        """Searches the messages of an agent."""
        answer = await self._search.search(convert_search.to_search(request))
        if len(answer.hits) <= _CONVERTED_AT_ONCE:
            return convert_search.answer_to_proto(answer)
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
        message_filter = convert_log.to_whole(request)
        page = await self._store.page(message_filter, EXPORT_PAGE, None)
        while page.messages:
            yield message_pb.ExportMessagesResponse(
                messages=convert.messages_to_proto(page.messages)
            )
            if page.next_cursor is None:
                return
            page = await self._store.page(message_filter, EXPORT_PAGE, page.next_cursor)

    async def GetRetention(
        self, request: message_pb.GetRetentionRequest, context: Context
    ) -> message_pb.GetRetentionResponse:
        """Returns for how long the project keeps messages."""
        retention = await self._retention.get()
        return message_pb.GetRetentionResponse(retention=convert_log.retention_to_proto(retention))

    async def SetRetention(
        self, request: message_pb.SetRetentionRequest, context: Context
    ) -> message_pb.SetRetentionResponse:
        """Sets for how long the project keeps messages."""
        retention = await self._retention.set(convert_log.to_days(request), self._clock.now())
        return message_pb.SetRetentionResponse(retention=convert_log.retention_to_proto(retention))
