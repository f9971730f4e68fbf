"""The conversation that the ``user`` of a request has with an agent."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc
from strata.gateway.http.openai_api.errors import of_call

_PAGE = 500
_CACHED = 10_000


class UserConversations:
    """Finds the conversation of a user by its title, or starts it.

    Args:
        channel: Calls the gateway.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def find(self, agent_id: str, user: str, metadata: Any) -> str:
        """Returns the id of the conversation.

        Args:
            agent_id: An agent that the caller may see.
            user: The user.
            metadata: The caller's credentials.

        Raises:
            ApiError: The name of the user cannot be the title of a conversation, or a call failed.
        """
        key = agent_id, user
        conversation_id = self._known.get(key)
        if conversation_id is None:
            try:
                conversation_id = await self._listed(agent_id, user, metadata)
                conversation_id = conversation_id or await self._start(agent_id, user, metadata)
            except grpc.aio.AioRpcError as error:
                raise of_call(error, "user") from error
            self._known[key] = conversation_id
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return conversation_id

    async def _listed(self, agent_id: str, user: str, metadata: Any) -> str | None:
        token = ""
        while True:
            page = await self._agents.ListConversations(
                pb.ListConversationsRequest(agent_id=agent_id, page_size=_PAGE, page_token=token),
                metadata=metadata,
            )
            for conversation in page.conversations:
                if conversation.title == user:
                    return str(conversation.id)
            token = page.next_page_token
            if not token:
                return None

    async def _start(self, agent_id: str, user: str, metadata: Any) -> str:
        # Requests of a user that come at the same time start one conversation.
        digest = hashlib.sha256(f"{agent_id}\n{user}".encode()).hexdigest()
        request = pb.CreateConversationRequest(
            request_id=f"user-{digest}", agent_id=agent_id, title=user
        )
        made = await self._agents.CreateConversation(request, metadata=metadata)
        return str(made.conversation.id)
