"""Models of OpenAI's API, which are agents, and the conversations of users with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import grpc
import grpc.aio

from strata.api.agent_loop.v1 import agent_service_pb2 as pb
from strata.api.agent_loop.v1 import agent_service_pb2_grpc
from strata.gateway.http.calls import HeaderLookup, agent_request
from strata.gateway.http.conversations import ExternalConversations
from strata.gateway.http.openai_api.errors import of_call

CONVERSATION_HEADER = "x-strata-conversation"
"""Names the conversation by an external id, for clients that can set headers but no ``user``."""

_PAGE = 500


class AgentFinder:
    """Finds agents.

    Args:
        channel: Calls the gateway.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)

    async def list(self, metadata: Any) -> Sequence[pb.Agent]:
        """Returns the names of the agents of the project, without memory agents.

        Args:
            metadata: The caller's credentials.

        Raises:
            AioRpcError: The call failed.
        """
        agents: list[pb.Agent] = []
        token = ""
        while True:
            page = await self._agents.ListAgents(
                pb.ListAgentsRequest(page_size=_PAGE, page_token=token, names_only=True),
                metadata=metadata,
            )
            agents += (agent for agent in page.agents if not agent.tends_agent_id)
            token = page.next_page_token
            if not token:
                return agents

    async def find(self, model: str, metadata: Any) -> pb.Agent:
        """Returns an agent by its name or id.

        Args:
            model: The name or id.
            metadata: The caller's credentials.

        Raises:
            ApiError: There is none, or the call failed.
        """
        try:
            response = await self._agents.GetAgent(agent_request(model), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            failure = of_call(error)
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                failure.param = "model"
                failure.message = "The model must be an agent, by name or id."
            if error.code() is grpc.StatusCode.NOT_FOUND:
                failure.param = "model"
                failure.code = "model_not_found"
                failure.message = (
                    f"There is no agent '{model}'. A model is an agent, by name or id."
                )
            raise failure from error
        agent: pb.Agent = response.agent
        return agent


def tools_left_out(names: Iterable[str], agent: pb.Agent) -> Sequence[str]:
    """Returns the tools that a request offers and the agent does not have, each once.

    The model is not shown them: an agent can call only the tools that are attached to it, and
    decides itself which it calls.
    """
    return [name for name in dict.fromkeys(names) if name not in agent.tools]


async def conversation_named_by(
    headers: HeaderLookup,
    user: str | None,
    conversations: ExternalConversations,
    agent: pb.Agent,
    metadata: Any,
) -> str:
    """Returns the id of the conversation that a request belongs to.

    Its header names one by an external id, or else the parameter ``user`` does; without both it is
    the default conversation of the agent.

    Args:
        headers: The headers of the request.
        user: The parameter.
        conversations: Finds conversations by their external id.
        agent: The agent.
        metadata: The caller's credentials.

    Raises:
        ApiError: The name cannot be an external id, or a call failed.
    """
    external_id = _in_utf8(headers.get(CONVERSATION_HEADER) or "")
    if not external_id:
        return (
            await _conversation_of_user(conversations, agent.id, user, metadata)
            if user
            else agent.default_conversation_id
        )
    try:
        return await conversations.find(agent.id, external_id, metadata)
    except grpc.aio.AioRpcError as error:
        raise of_call(error, CONVERSATION_HEADER) from error


async def _conversation_of_user(
    conversations: ExternalConversations, agent_id: str, user: str, metadata: Any
) -> str:
    """Returns the id of the conversation of a user, whose external id is the user.

    Earlier releases started conversations with the user as the title alone.

    Raises:
        ApiError: The user cannot be an external id, or a call failed.
    """
    try:
        return await conversations.find(agent_id, user, metadata, or_title=True)
    except grpc.aio.AioRpcError as error:
        raise of_call(error, "user") from error


def _in_utf8(value: str) -> str:
    """Returns the value of a header, which was read as Latin-1, as the UTF-8 that it mostly is."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
