"""Finds the conversations that clients name by external ids."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from typing import Any

import grpc
import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc
from strata.shared.names import MAX_AGENT_NAME_CHARS, name_problems

_CACHED = 10_000


class ExternalConversations:
    """Finds conversations by their external id, or starts them.

    Args:
        channel: Calls the gateway.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._conversation_ids: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def find(
        self, agent_id: str, external_id: str, metadata: Any, *, or_title: bool = False
    ) -> str:
        """Returns the id of the conversation.

        Args:
            agent_id: An agent that the caller may see.
            external_id: The identifier.
            metadata: The caller's credentials.
            or_title: Whether it may be an older conversation without an external id whose title is
                the identifier.

        Raises:
            grpc.aio.AioRpcError: The external id is not valid, or a call failed.
        """
        key = agent_id, external_id
        conversation_id = self._conversation_ids.get(key)
        if conversation_id is None:
            conversation_id = (
                await self._stored(agent_id, external_id, metadata)
                or (
                    or_title
                    and _title_of(external_id) == external_id
                    and await self._titled(agent_id, external_id, metadata)
                )
                or await self._start(agent_id, external_id, metadata)
            )
            self._conversation_ids[key] = conversation_id
            if len(self._conversation_ids) > _CACHED:
                self._conversation_ids.popitem(last=False)
        self._conversation_ids.move_to_end(key)
        return conversation_id

    async def known(self, agent_id: str, external_id: str, metadata: Any) -> str | None:
        """Returns the id of the conversation; None if there is none.

        Raises:
            grpc.aio.AioRpcError: The external id is not valid, or a call failed.
        """
        cached = self._conversation_ids.get((agent_id, external_id))
        return cached or await self._stored(agent_id, external_id, metadata) or None

    async def _stored(self, agent_id: str, external_id: str, metadata: Any) -> str:
        request = pb.GetConversationRequest(agent_id=agent_id, external_id=external_id)
        try:
            response = await self._agents.GetConversation(request, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return ""
            raise
        return str(response.conversation.id)

    async def _titled(self, agent_id: str, title: str, metadata: Any) -> str:
        request = pb.ListConversationsRequest(agent_id=agent_id, title=title, page_size=1)
        page = await self._agents.ListConversations(request, metadata=metadata)
        return next(
            (
                conversation.id
                for conversation in page.conversations
                if not conversation.external_id
            ),
            "",
        )

    async def _start(self, agent_id: str, external_id: str, metadata: Any) -> str:
        # Requests that come at the same time start one conversation.
        digest = hashlib.sha256(f"{agent_id}\n{external_id}".encode()).hexdigest()
        request = pb.CreateConversationRequest(
            request_id=f"external-{digest}",
            agent_id=agent_id,
            title=_title_of(external_id),
            external_id=external_id,
        )
        try:
            started = await self._agents.CreateConversation(request, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            already_exists = error.code() is grpc.StatusCode.ALREADY_EXISTS
            conversation_id = already_exists and await self._stored(agent_id, external_id, metadata)
            if not conversation_id:
                raise
            return conversation_id
        return str(started.conversation.id)


def _title_of(external_id: str) -> str:
    """Returns the identifier as a title, whose rule is stricter: see `strata.shared.names`.

    The title is empty if the identifier cannot be made one, such as ``..``.
    """
    title = re.sub(r"[/\\]", "-", external_id)[:MAX_AGENT_NAME_CHARS].strip()
    return "" if name_problems(title, most=MAX_AGENT_NAME_CHARS) else title
