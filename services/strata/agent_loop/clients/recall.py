"""The client of recall memory, with caches of images and windows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import grpc.aio

from strata.agent_loop.clients.window_cache import (
    WINDOW_CACHE_BYTES,
    WindowCache,
    size_of,
    whole_window,
)
from strata.agent_loop.convert.messages import (
    message_to_proto,
    messages_from_proto,
    window_from_proto,
)
from strata.agent_loop.domain.conversation.messages import Message, Window
from strata.agent_loop.domain.ports import (
    BegunTurn,
    CommittedStep,
    StepCommit,
    WindowSwap,
)
from strata.agent_loop.domain.run.journal import JournalKey
from strata.agent_loop.domain.run.runs import TranscriptRange
from strata.api.recall.v1 import message_service_pb2 as message_pb
from strata.api.recall.v1 import message_service_pb2_grpc as message_grpc
from strata.api.recall.v1 import window_service_pb2 as window_pb
from strata.api.recall.v1 import window_service_pb2_grpc as window_grpc
from strata.protocol.errors import NotFoundError
from strata.shared.context import current_project

_TRANSCRIPT_PAGE = 500


class ImageCache:
    """Caches the bytes of images by project and id; drops the least recently used ones.

    Args:
        limit: Maximum bytes of all images together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._images: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def get(self, key: tuple[str, str]) -> bytes | None:
        """Returns an image; None if it is not cached."""
        data = self._images.get(key)
        if data is not None:
            self._images.move_to_end(key)
        return data

    def put(self, key: tuple[str, str], data: bytes) -> None:
        """Adds an image."""
        if self.get(key) is None:
            self._images[key] = data
            self._size += len(data)
        while self._size > self._limit:
            self._size -= len(self._images.popitem(last=False)[1])


class RecallClient:
    """Implements `domain.ports.Recall` and `agents.ports.LifecycleRecall`.

    Args:
        channel: Channel to the recall service.
        image_cache_bytes: Size of the cache of recently stored or read images.
        window_cache_bytes: Size of the cache of windows.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        image_cache_bytes: int = 0,
        window_cache_bytes: int = WINDOW_CACHE_BYTES,
    ) -> None:
        self._stub = window_grpc.WindowServiceStub(channel)
        self._messages = message_grpc.MessageServiceStub(channel)
        self._images = ImageCache(image_cache_bytes)
        self._windows = WindowCache(window_cache_bytes)

    async def begin_turn(
        self, key: JournalKey, inputs: Sequence[Message], *, clear: bool = False
    ) -> BegunTurn:
        """Stores the inputs, takes the fence, and returns the window."""
        cache_key = (current_project(), key.conversation_id)
        cached = self._windows.get(cache_key)
        request = window_pb.BeginTurnRequest(
            conversation_id=key.conversation_id,
            agent_id=key.agent_id,
            run_id=key.run_id,
            attempt=key.attempt,
            inputs=[message_to_proto(message) for message in inputs],
            clear_window=clear,
            held=cached.to_proto() if cached is not None else None,
        )
        response = await self._stub.BeginTurn(request)
        self._keep_images(inputs)
        window = whole_window(response, cached)
        self._windows.put(cache_key, window)
        return BegunTurn(
            window.window,
            messages_from_proto(response.inputs),
            response.committed_steps,
            messages_from_proto(response.committed_messages),
        )

    async def commit_step(self, commit: StepCommit) -> CommittedStep:
        """Stores a step."""
        request = window_pb.CommitStepRequest(
            conversation_id=commit.key.conversation_id,
            agent_id=commit.key.agent_id,
            run_id=commit.key.run_id,
            attempt=commit.key.attempt,
            step=commit.step,
            step_id=commit.step_id,
            messages=[message_to_proto(message) for message in commit.messages],
            system_text=commit.system_text,
            metadata_stale=commit.metadata_stale,
        )
        response = await self._stub.CommitStep(request)
        self._keep_images(commit.messages)
        committed = CommittedStep(
            messages_from_proto(response.messages), response.revision, response.message_count
        )
        cache_key = (current_project(), commit.key.conversation_id)
        if (cached := self._windows.get(cache_key)) is not None:
            sizes = [size_of(message) for message in response.messages]
            self._windows.put(cache_key, cached.with_step(committed, sum(sizes)))
        return committed

    async def open_window(
        self, conversation_id: str, agent_id: str, messages: Sequence[Message]
    ) -> None:
        """Creates the window of a conversation; an existing window stays unchanged."""
        request = window_pb.OpenWindowRequest(
            conversation_id=conversation_id,
            agent_id=agent_id,
            messages=[message_to_proto(message) for message in messages],
        )
        await self._stub.OpenWindow(request)

    async def swap_window(self, swap: WindowSwap) -> Window:
        """Stores a summary and the compacted window that contains it."""
        request = window_pb.CompactWindowRequest(
            conversation_id=swap.conversation_id,
            run_id=swap.key.run_id if swap.key is not None else "",
            attempt=swap.key.attempt if swap.key is not None else 0,
            expected_revision=swap.expected_revision,
            summary=message_to_proto(swap.summary),
            kept_message_ids=swap.kept_ids,
        )
        return window_from_proto((await self._stub.CompactWindow(request)).window)

    async def fork_window(self, source_id: str, conversation_id: str, until_id: str) -> None:
        """Creates a copy of a window up to a message; an existing window stays unchanged."""
        request = window_pb.ForkWindowRequest(
            source_conversation_id=source_id,
            conversation_id=conversation_id,
            until_message_id=until_id,
        )
        await self._stub.ForkWindow(request)

    async def get_window(self, conversation_id: str) -> Window:
        """Returns a window."""
        request = window_pb.GetWindowRequest(conversation_id=conversation_id)
        return window_from_proto((await self._stub.GetWindow(request)).window)

    async def evict(self, transcript_range: TranscriptRange) -> None:
        """Removes the messages of a range, and those before it, from the window."""
        request = window_pb.EvictMessagesRequest(
            conversation_id=transcript_range.conversation_id,
            agent_id=transcript_range.agent_id,
            until_sequence=transcript_range.until_sequence,
        )
        await self._stub.EvictMessages(request)

    async def transcript(self, transcript_range: TranscriptRange) -> Sequence[Message]:
        """Returns the stored messages of a range of a conversation, in order.

        There are none if the conversation was deleted.
        """
        request = message_pb.ListMessagesRequest(
            conversation_id=transcript_range.conversation_id,
            page_size=_TRANSCRIPT_PAGE,
            order=message_pb.LIST_ORDER_OLDEST_FIRST,
            from_sequence=transcript_range.after_sequence + 1,
            to_sequence=transcript_range.until_sequence,
        )
        messages: list[Message] = []
        while True:
            try:
                page = await self._messages.ListMessages(request)
            except NotFoundError:
                return []
            messages.extend(messages_from_proto(page.messages))
            if not page.next_page_token:
                return messages
            request.page_token = page.next_page_token

    async def image(self, image_id: str) -> bytes:
        """Returns the bytes of an image, from the cache if possible."""
        key = (current_project(), image_id)
        data = self._images.get(key)
        if data is None:
            request = message_pb.GetImageRequest(image_id=image_id)
            data = (await self._messages.GetImage(request)).data
            self._images.put(key, data)
        return data

    def _keep_images(self, messages: Sequence[Message]) -> None:
        """Caches the images of stored messages, because the next model request contains them."""
        for message in messages:
            for image in message.images:
                if image.data:
                    self._images.put((current_project(), image.image_id), image.data)

    async def release(self, agent_id: str) -> None:
        """Deletes all messages of an agent."""
        request = window_pb.DeleteAgentMessagesRequest(agent_id=agent_id)
        await self._stub.DeleteAgentMessages(request)
